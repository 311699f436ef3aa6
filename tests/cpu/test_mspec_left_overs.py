"""Owns the proof that a .mspec run goes on to the same bytes whatever was left of the last."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from engine.artifacts.mspec import Verify, open_mspec
from engine.artifacts.mspec_journal import Journal
from engine.artifacts.mspec_writer import MspecWriter
from engine.errors import IoFailure
from tests.cpu import mspec_cases as cases
from tests.cpu.mspec_runs import ITEMS, ORIGIN, WHOLE, convert, stopped


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
