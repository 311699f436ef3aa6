"""Owns the proof that a .mspec writer that is refused by its source or the system loses nothing."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.artifacts.mspec import open_mspec
from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_writer import MspecWriter
from engine.errors import IoFailure, ModelError
from tests.cpu import mspec_cases as cases
from tests.cpu.mspec_runs import ORIGIN, put

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("error", [ModelError("broken"), KeyboardInterrupt(), MemoryError()])
def test_a_source_that_breaks_off_undoes_its_object(error: BaseException, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"\1" * 5000
        raise error

    x = cases.Item(b"x", bytes(16), shape=(4,))
    with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
        with pytest.raises(type(error)):
            writer.write("y", "tensor", "f32", (5000,), "row_major", chunks())
        put(writer, x)
        writer.finish()
    assert (tmp_path / "out").read_bytes() == cases.mspec([x])


def failing(code: int) -> Callable[..., None]:
    def fail(*args: object, **kw: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace", "pwrite"])
def test_a_refusal_of_the_system_keeps_the_old_file_and_what_is_done(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    items = cases.sound_items()
    n_open = len(os.listdir("/proc/self/fd"))
    with MspecWriter(path, ORIGIN, "key") as writer:
        for item in items:
            put(writer, item)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(errno.ENOSPC))
            with pytest.raises(IoFailure, match=r"out': No space left on device"):
                writer.finish()
    assert path.read_bytes() == b"old"
    assert len(os.listdir("/proc/self/fd")) == n_open
    with pytest.raises(ModelError):
        open_mspec(tmp_path / "out.part")
    with MspecWriter(path, ORIGIN, "key") as writer:
        assert len(writer.done) == len(items)
        writer.finish()
    assert path.read_bytes() == cases.mspec(items)


@pytest.mark.parametrize("limit", [0, 100, 70_000, 3_000_000])
def test_a_full_device_keeps_what_is_done(limit: int, tmp_path: Path) -> None:
    """A limit on file length stands in for a full device: the real write call fails half-way."""
    code = (
        "import resource, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from engine.artifacts.mspec_format import Origin\n"
        "from engine.artifacts.mspec_writer import MspecWriter\n"
        "from engine.errors import IoFailure\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try:\n"
        "    with MspecWriter(sys.argv[1], Origin('m', 'r', '0' * 64), 'k') as w:\n"
        "        w.write_text('first', 'a')\n"
        "        w.write('x', 'tensor', 'f32', (1 << 20,), 'row_major',\n"
        "                (bytes(65536) for _ in range(64)))\n"
        "except IoFailure as e:\n"
        "    print(e, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, check=True
    )
    assert done.stdout.endswith(b"out': File too large")
    assert not (tmp_path / "out").exists()
    with MspecWriter(tmp_path / "out", Origin("m", "r", "0" * 64), "k") as writer:
        assert list(writer.done) == (["first"] if limit >= 70_000 else [])


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.part").mkdir()
    os.mkfifo(tmp_path / "b.part.journal")
    (tmp_path / "c.part").symlink_to(tmp_path / "folder")
    for name, reason in (
        ("missing/out", "No such file"), ("folder", "not a regular file"),
        ("pipe", "not a regular file"), ("n" * 250, "too long"), ("pipe/out", "Not a directory"),
        ("a", "Is a directory"), ("b", "not a regular file"), ("c", "symbolic link"),
    ):  # fmt: skip
        with pytest.raises(IoFailure, match=reason):
            MspecWriter(tmp_path / name, ORIGIN, "key")
    assert not any((tmp_path / "folder").iterdir())
