"""Owns the proof that a GGUF file appears whole or not at all, whatever goes wrong."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, write_gguf
from engine.errors import InvalidArgument, IoFailure, ModelError

ROOT = Path(__file__).parents[2]
U32 = ValueType.UINT32


def source(name: str = "x", n: int = 4, dims: tuple[int, ...] | None = None) -> TensorSource:
    return TensorSource(name, dims or (n,), 0, 4 * n, (bytes(4 * n),))


BAD_INPUT: dict[str, tuple[Callable[[Path], None], str]] = {
    "duplicate key": (lambda p: write_gguf(p, [("x", GgufValue.of(U32, 1))] * 2, []), "'x'.*twice"),
    "duplicate tensor": (lambda p: write_gguf(p, [], [source(), source()]), "'x'.*twice"),
    "too few bytes": (
        lambda p: write_gguf(p, [], [TensorSource("x", (4,), 0, 16, (b"12345678",) )]),
        "'x' gave 8 bytes of data and announced 16"),
    "too many bytes": (
        lambda p: write_gguf(p, [], [TensorSource("x", (4,), 0, 16, (bytes(16), b"1"))]),
        "'x' gave 17 or more bytes of data and announced 16"),
    "announced wrongly": (
        lambda p: write_gguf(p, [], [TensorSource("x", (4,), 0, 12, (bytes(12),))]),
        "'x' announces 12 bytes, F32 .* takes 16"),
    "unknown type": (
        lambda p: write_gguf(p, [], [TensorSource("x", (4,), 4, 16, ())]), "'x'.*type 4"),
    "part of a block": (
        lambda p: write_gguf(p, [], [TensorSource("x", (31,), 3, 20, ())]), "'x'.*31.*Q4_1"),
    "no dimensions": (lambda p: write_gguf(p, [], [source(dims=(0,))]), "'x'.*dimensions"),
    "five dimensions": (lambda p: write_gguf(p, [], [source(dims=(4, 1, 1, 1, 1))]), "'x'.*4"),
    "long name": (lambda p: write_gguf(p, [], [source("n" * 257)]), "257"),
    "empty key": (lambda p: write_gguf(p, [("", GgufValue.of(U32, 1))], []), "0 bytes"),
    "NUL in a name": (lambda p: write_gguf(p, [], [source("a\0b")]), r"a\\x00b"),
    "lone surrogate": (lambda p: write_gguf(p, [], [source("\udc80")]), "not text"),
    "alignment 0": (lambda p: write_gguf(p, [], [], 0), "alignment 0"),
    "alignment 24": (lambda p: write_gguf(p, [], [], 24), "alignment 24"),
    "alignment differs": (
        lambda p: write_gguf(p, [("general.alignment", GgufValue.of(U32, 64))], [], 32),
        "general.alignment is UINT32 64, the file's is 32"),
    "too many pairs": (
        lambda p: write_gguf(p, [(str(i), GgufValue.of(U32, i)) for i in range(16_385)], []),
        "16385 metadata pairs, at most 16384"),
    "NUL in the path": (lambda p: write_gguf(f"{p}\0", [], []), "not a path"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_refused_and_leaves_nothing(
    write: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def failing(name: str, code: int) -> Callable[..., None]:
    def fail(*args: object, **kw: object) -> None:
        raise OSError(code, os.strerror(code))

    fail.__name__ = name
    return fail


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_refusal_of_the_system_leaves_the_old_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    n_open = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(call, errno.ENOSPC))
        with pytest.raises(IoFailure, match=r"out'.*No space left on device"):
            write_gguf(out, [], [source()])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert out.read_bytes() == b"old"
    assert len(os.listdir("/proc/self/fd")) == n_open


@pytest.mark.parametrize("limit", [0, 10, 70_000, 3_000_000])
def test_a_full_device_leaves_nothing(limit: int, tmp_path: Path) -> None:
    """A limit on file length stands in for a full device: the real write call fails half-way."""
    code = (
        "import resource, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from engine.artifacts.gguf_writer import TensorSource, write_gguf\n"
        "from engine.errors import IoFailure\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "x = TensorSource('x', (1 << 20,), 0, 4 << 20, (bytes(65536) for _ in range(64)))\n"
        "try:\n"
        "    write_gguf(sys.argv[1], [], [x])\n"
        "except IoFailure as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, check=True
    )
    assert b"File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ModelError("broken"), KeyboardInterrupt(), MemoryError()])
def test_a_source_that_breaks_off_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield bytes(8)
        raise error

    with pytest.raises(type(error)):
        write_gguf(tmp_path / "out", [], [TensorSource("x", (4,), 0, 16, chunks())])
    assert list(tmp_path.iterdir()) == []


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("missing/out", "No such file"),
        ("folder", "not a regular file"),
        ("pipe", "not a regular file"),
        ("n" * 256, "too long"),
        ("pipe/out", "Not a directory"),
    ):
        with pytest.raises(IoFailure, match=reason):
            write_gguf(tmp_path / name, [], [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "pipe"]
