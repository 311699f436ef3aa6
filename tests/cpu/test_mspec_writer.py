"""Owns the proof that written .mspec files are exact, and whole or not there."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import mspec_writer
from engine.artifacts.mspec import open_mspec
from engine.artifacts.mspec_format import Kind, Origin
from engine.artifacts.mspec_writer import MspecWriter
from engine.errors import InvalidArgument
from tests.cpu import mspec_cases as cases
from tests.cpu.mspec_runs import ORIGIN, put

ROOT = Path(__file__).resolve().parents[2]


def small(writer: MspecWriter, name: str = "x", n: int = 4) -> None:
    writer.write(name, "tensor", "f32", (n,), "row_major", [bytes(4 * n)])


def test_a_file_is_what_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "out"
    items = cases.sound_items()
    with MspecWriter(path, ORIGIN, "key") as writer:
        for item in items:
            put(writer, item)
        assert list(writer.done) == [item.name.decode() for item in items]
        assert writer.n_bytes == sum(len(item.data) for item in items)
        assert writer.finish() == cases.weights_id(items).hex()
    assert path.read_bytes() == cases.mspec(items)
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_without_objects(tmp_path: Path) -> None:
    with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
        writer.finish()
    assert (tmp_path / "out").read_bytes() == cases.mspec()


def test_chunks_may_be_anything_contiguous_or_not(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.uint16).reshape(3, 4)
    empty = np.zeros((0, 4), np.float32)
    chunks = (x[:2], b"", x.T[:, 2], empty, memoryview(b"1234"), bytearray(8))
    with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
        writer.write("x", "tensor", "bf16", (np.int64(18),), "row_major", chunks)
        writer.write_text("t", "hé")
        writer.write_text("j", "{}", Kind.JSON)
        writer.finish()
    with open_mspec(tmp_path / "out") as file:
        assert file.raw("x").tobytes() == x.tobytes() + b"1234" + bytes(8)
        assert file.text("t") == "hé"
        assert file.objects["j"].kind == "json"


def test_a_writer_goes_on_after_a_refusal(tmp_path: Path) -> None:
    """Whatever is refused leaves no trace in the bytes."""
    path = tmp_path / "out"
    items = cases.sound_items()
    with MspecWriter(path, ORIGIN, "key") as writer:
        for item in items:
            with pytest.raises(InvalidArgument, match="or more bytes"):
                put(writer, item._replace(data=item.data + b"\1" * 700, shape=item.dims()))
            with pytest.raises(InvalidArgument, match=f"gave {len(item.data) - 1} bytes"):
                put(writer, item._replace(data=item.data[:-1], shape=item.dims()))
            put(writer, item)
        writer.finish()
    assert path.read_bytes() == cases.mspec(items)


BAD_OBJECTS: dict[str, tuple[Callable[[MspecWriter], None], str]] = {
    "twice": (lambda w: small(w, "first"), "'first' is written already"),
    "no name": (lambda w: small(w, ""), "has 0 bytes"),
    "long name": (lambda w: small(w, "n" * 257), "has 257 bytes"),
    "NUL in the name": (lambda w: small(w, "a\0"), "no NUL"),
    "surrogate in the name": (lambda w: small(w, "a\ud800"), "is not text"),
    "kind": (lambda w: w.write("x", "tensors", "f32", (1,), "row_major", []), "tensors of f32"),
    "dtype": (lambda w: w.write("x", "tensor", "q4", (1,), "row_major", []), "tensor of q4"),
    "layout": (lambda w: w.write("x", "tensor", "f32", (1,), "rows", []), "kept as row_major"),
    "no dims": (lambda w: w.write("x", "tensor", "f32", (), "row_major", []), r"shape \[\]"),
    "dim 0": (lambda w: w.write("x", "tensor", "f32", (3, 0), "row_major", []), r"\[3, 0\]"),
    "9 dims": (lambda w: w.write("x", "tensor", "f32", (1,) * 9, "row_major", []), "1 to 8"),
    "huge": (lambda w: w.write("x", "tensor", "f32", (2**64,), "row_major", []), "is more than"),
    "text": (lambda w: w.write("x", "text", "f32", (1,), "row_major", []), "text of f32"),
    "text 2d": (lambda w: w.write("x", "text", "u8", (1, 1), "row_major", []), "one dimension"),
    "empty text": (lambda w: w.write_text("x", ""), r"shape \[0\]"),
    "long text": (lambda w: w.write("x", "json", "u8", (2**27,), "row_major", []), "is more than"),
    "text that is none": (lambda w: w.write_text("x", "\ud800"), "'x' is not text"),
    "int4": (lambda w: w.write("x", "tensor", "int4", (4, 128), "int4_symmetric_group_bf16_scale",
        []), "multiple of 8"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "words"), BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_a_bad_object_is_refused(
    write: Callable[[MspecWriter], None], words: str, tmp_path: Path
) -> None:
    with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
        small(writer, "first")
        with pytest.raises(InvalidArgument, match=words):
            write(writer)
        assert list(writer.done) == ["first"]


def test_more_objects_than_a_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mspec_writer, "MAX_OBJECTS", 2)
    with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
        small(writer, "a")
        small(writer, "b")
        with pytest.raises(InvalidArgument, match="more than 2 objects"):
            small(writer, "c")


@pytest.mark.parametrize(
    ("origin", "key", "words"),
    [(Origin("", "r", "0" * 64), "k", "model_id"),
     (Origin("m", "r" * 257, "0" * 64), "k", "recipe"),
     (Origin("m", "r", "0" * 63), "k", "not 64 hex"), (Origin("m", "r", "G" * 64), "k", "not 64"),
     (Origin("m", "r", "A" * 64), "k", "not 64"), (Origin("m\0", "r", "0" * 64), "k", "NUL"),
     (ORIGIN, "", "resume_key"), (ORIGIN, "k" * 4097, "resume_key .* 4097 bytes")],
)  # fmt: skip
def test_a_bad_origin_is_refused_and_leaves_nothing(
    origin: Origin, key: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        MspecWriter(tmp_path / "out", origin, key)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    writer = MspecWriter(tmp_path / "out", ORIGIN, "key")
    writer.finish()
    for call in (writer.finish, writer.abort, lambda: small(writer)):
        with pytest.raises(InvalidArgument, match="is closed"):
            call()
    writer.close()


def test_abort_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    writer = MspecWriter(tmp_path / "out", ORIGIN, "key")
    small(writer)
    writer.abort()
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"


def test_writing_takes_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with MspecWriter(tmp_path / "out", ORIGIN, "key") as writer:
            chunks = (bytes(1 << 20) for _ in range(64))
            writer.write("x", "tensor", "f32", (1 << 24,), "row_major", chunks)
            writer.finish()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out").stat().st_size > 64 << 20
