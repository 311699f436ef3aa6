"""Owns the proof that an interrupted .mspec run leaves no file that opens, and goes on to the same
bytes, wherever it was killed and whatever became of what it left."""

import contextlib
import errno
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.mspec import Verify, open_mspec
from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_journal import Journal
from engine.artifacts.mspec_writer import MspecWriter
from engine.errors import IoFailure, ModelError
from tests.cpu import mspec_cases as cases
from tests.cpu.test_mspec_writer import ORIGIN, put, small

ITEMS = cases.sound_items()
WHOLE = cases.mspec(ITEMS)
# Every call by which a writer changes the file system.
CALLS = ("pwrite", "ftruncate", "fsync", "replace", "unlink", "open")


def convert(path: Path, origin: Origin = ORIGIN, key: str = "key") -> int:
    """A run as the converter has it; the number of objects it found done."""
    with MspecWriter(path, origin, key) as writer:
        n_done = len(writer.done)
        for item in ITEMS:
            if item.name.decode() not in writer.done:
                put(writer, item, 300)
        writer.finish()
    return n_done


def stopped(path: Path, n_objects: int, key: str = "key") -> None:
    """A run that begins, or goes on, and ends after so many objects."""
    with MspecWriter(path, ORIGIN, key) as writer:
        for item in ITEMS[len(writer.done) : n_objects]:
            put(writer, item)


def killed_at(path: Path, n_calls: int, half: bool) -> bool:
    """Run until the n-th call of the system and die there; whether it came so far."""
    child = multiprocessing.get_context("fork").Process(target=_run, args=(path, n_calls, half))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def _run(path: Path, n_calls: int, half: bool) -> None:
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kw: Any) -> Any:
            nonlocal count
            count += 1
            if count == n_calls:
                if half and call.__name__ == "pwrite":
                    call(args[0], args[1][: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kw)

        return instead

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    convert(path)


def assert_nothing_opens_but_the_whole(folder: Path) -> None:
    for path in folder.iterdir():
        try:
            open_mspec(path).close()
        except ModelError:
            continue
        assert path.name == "out"
        assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("half", [False, True], ids=["before", "half_way"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_a_run_killed_at_any_call_goes_on_to_the_same_bytes(
    half: bool, twice: bool, tmp_path: Path
) -> None:
    found_done = set()
    for n_calls in range(1, 200):
        path = tmp_path / str(n_calls) / "out"
        path.parent.mkdir()
        if not killed_at(path, n_calls, half):
            break
        assert_nothing_opens_but_the_whole(path.parent)
        if twice:
            killed_at(path, n_calls * 7 % 30 + 1, half)
            assert_nothing_opens_but_the_whole(path.parent)
        found_done.add(convert(path))
        assert path.read_bytes() == WHOLE
        assert os.listdir(path.parent) == ["out"]
    assert 30 < n_calls < 199
    assert twice or found_done == set(range(len(ITEMS) + 1))


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    stopped(path, 5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out.part", "out.part.journal"]
    assert path.read_bytes() == b"old"
    with pytest.raises(ModelError):
        open_mspec(tmp_path / "out.part")
    with MspecWriter(path, ORIGIN, "key") as writer:
        assert list(writer.done) == [item.name.decode() for item in ITEMS[:5]]
        assert writer.n_bytes == sum(len(item.data) for item in ITEMS[:5])
    assert convert(path) == 5
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("origin", "key"),
    [(ORIGIN, "other"),
     (Origin("other", "bf16", cases.RECIPE_SHA256), "key"),
     (Origin("tiny", "int4", cases.RECIPE_SHA256), "key"),
     (Origin("tiny", "bf16", "0" * 64), "key")],
)  # fmt: skip
def test_what_another_run_left_is_discarded(origin: Origin, key: str, tmp_path: Path) -> None:
    path, fresh = tmp_path / "out", tmp_path / "fresh"
    stopped(path, 5)
    assert convert(path, origin, key) == 0
    convert(fresh, origin, key)
    assert path.read_bytes() == fresh.read_bytes()


def left_overs(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    path = tmp_path / "out"
    stopped(path, 6)
    return path, (tmp_path / "out.part").read_bytes(), (tmp_path / "out.part.journal").read_bytes()


def goes_on(path: Path, part: bytes | None, journal: bytes | None) -> int:
    for suffix, data in ((".part", part), (".part.journal", journal)):
        name = path.with_name(path.name + suffix)
        if data is None:
            name.unlink(missing_ok=True)
        else:
            name.write_bytes(data)
    n_done = convert(path)
    assert path.read_bytes() == WHOLE
    assert os.listdir(path.parent) == ["out"]
    return n_done


def test_missing_left_overs(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    assert goes_on(path, part, journal) == 6
    assert goes_on(path, part, None) == 0
    assert goes_on(path, None, journal) == 0
    assert goes_on(path, part, b"") == 0
    assert goes_on(path, b"", journal) == 0
    assert goes_on(path, part, b"\0" * 5000 + b"\n" * 5000) == 0
    assert goes_on(path, part, journal + journal) == 6
    begun = part + bytes(-len(part) % 256) + b"the next object, half"
    assert goes_on(path, begun, journal + b"torn") == 6


def test_a_torn_journal(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    lines = [n for n, byte in enumerate(journal) if byte == 10]
    for n_bytes in range(0, len(journal), 11):
        whole_lines = sum(n < n_bytes for n in lines)
        assert goes_on(path, part, journal[:n_bytes]) == max(0, whole_lines - 1)


def test_a_flipped_journal(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    lines = journal.splitlines()
    for i in range(0, len(journal), 13):
        n_before = journal[:i].count(b"\n")
        flipped = journal[:i] + bytes((journal[i] ^ 1,)) + journal[i + 1 :]
        assert goes_on(path, part, flipped) == max(0, n_before - 1)
    # Lines that are sound one by one, but of another run, or in another order.
    other = tmp_path / "other"
    stopped(other, 6, "other")
    theirs = other.with_name("other.part.journal").read_bytes().splitlines()
    for left_over in tmp_path.glob("other.*"):
        left_over.unlink()
    assert goes_on(path, part, b"\n".join([lines[0], *theirs[1:], b""])) == 0
    swapped = b"\n".join([*lines[:2], lines[3], lines[2], *lines[4:], b""])
    assert goes_on(path, part, swapped) == 1


def test_a_flipped_part(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    ends = [256]
    for item in ITEMS[:6]:
        ends.append(ends[-1] + -(-len(item.data) // 256) * 256)
    # The header is made anew, and what lies behind the last object is cut off.
    for i in (*range(0, 256, 51), *range(256, len(part), 7)):
        flipped = part[:i] + bytes((part[i] ^ 0x40,)) + part[i + 1 :]
        n_sound = 6 if i < 256 else max(n for n, end in enumerate(ends) if end <= i)
        assert goes_on(path, flipped, journal) == n_sound


def test_a_second_stop_after_damage_keeps_what_was_made_good(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    path.with_name("out.part").write_bytes(part[:900] + b"\xff" + part[901:])
    stopped(path, 6)
    assert path.with_name("out.part").read_bytes() == part
    assert path.with_name("out.part.journal").read_bytes() == journal
    assert convert(path) == 6
    assert path.read_bytes() == WHOLE


def test_left_overs_are_cleaned_as_soon_as_a_run_goes_on(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    path.with_name("out.part").write_bytes(WHOLE)
    path.with_name("out.part.journal").write_bytes(journal + b"torn")
    stopped(path, 0)
    assert path.with_name("out.part").read_bytes() == part
    assert path.with_name("out.part.journal").read_bytes() == journal


def test_a_journal_that_names_an_object_twice(tmp_path: Path) -> None:
    path = tmp_path / "out"
    stopped(path, 1)
    with contextlib.closing(Journal(tmp_path.as_posix().encode() + b"/out.part.journal", ORIGIN,
                                    "key")) as journal:  # fmt: skip
        first = journal.objects[ITEMS[0].name.decode()]
        journal.append(first._replace(offset=512))
    part = path.with_name("out.part")
    part.write_bytes(cases.padded(part.read_bytes()) + ITEMS[0].data)
    assert convert(path) == 1
    assert path.read_bytes() == WHOLE


def test_a_refused_start_lets_go_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "out"
    stopped(path, 6)
    n_open = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(IoFailure, match="Input/output error"):
            MspecWriter(path, ORIGIN, "key")
    assert len(os.listdir("/proc/self/fd")) == n_open
    assert convert(path) == 6


def test_a_truncated_part(tmp_path: Path) -> None:
    path, part, journal = left_overs(tmp_path)
    for n_bytes in range(0, len(part), 61):
        assert goes_on(path, part[:n_bytes], journal) < 6
    with open_mspec(path, Verify.ALWAYS) as file:
        for name in file.objects:
            file.raw(name)


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with MspecWriter(path, ORIGIN, "key") as first:
        small(first)
        for key in ("key", "other"):
            with pytest.raises(IoFailure, match=r"out.part.journal' is locked: another writer"):
                MspecWriter(path, ORIGIN, key)
        small(first, "y")
        first.finish()
    with open_mspec(path) as file:
        assert list(file.objects) == ["x", "y"]


def test_a_source_that_fails_while_going_on(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"\1"
        raise ModelError("broken")

    path = tmp_path / "out"
    stopped(path, 3)
    with pytest.raises(ModelError, match="broken"), MspecWriter(path, ORIGIN, "key") as writer:
        writer.write("y", "tensor", "f32", (50,), "row_major", chunks())
    assert convert(path) == 3
    assert path.read_bytes() == WHOLE
