"""Owns the proof that a .mspec run leaves no file that opens, wherever it is killed, and that the
next one goes on to the same bytes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.mspec import open_mspec
from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_writer import MspecWriter
from engine.errors import IoFailure, ModelError
from tests.cpu import mspec_cases as cases
from tests.cpu.mspec_runs import ITEMS, ORIGIN, WHOLE, convert, stopped
from tests.cpu.test_mspec_writer import small

# Every call by which a writer changes the file system.
CALLS = ("pwrite", "ftruncate", "fsync", "replace", "unlink", "open")


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
