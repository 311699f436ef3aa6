"""Owns the proof that written GGUF files are exact, aligned and readable elsewhere."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import ggml_types as ggml
from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, to_float32_gguf, write_gguf
from engine.errors import InvalidArgument, ModelError
from tests.cpu import gguf_cases as cases

U32 = ValueType.UINT32


def source(name: str = "x", n: int = 4, dims: tuple[int, ...] | None = None) -> TensorSource:
    return TensorSource(name, dims or (n,), ggml.F32, 4 * n, (bytes(4 * n),))


def test_a_copy_has_the_same_bytes(tmp_path: Path) -> None:
    """Every value type goes through unchanged, and the layout is the one of the sound file."""
    original, copy = tmp_path / "a", tmp_path / "b"
    original.write_bytes(cases.every_type())
    with open_gguf(original) as file:
        sources = [TensorSource.copy_of(t) for t in file.tensors]
        write_gguf(copy, list(file.metadata.items()), sources)
    padding = -original.stat().st_size % 32
    assert copy.read_bytes() == original.read_bytes() + bytes(padding)


@pytest.mark.parametrize(("kind", "code", "value"), cases.SCALARS)
def test_values_are_made_as_files_hold_them(
    kind: int, code: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(cases.every_type())
    file = open_gguf(path)
    assert GgufValue.of(ValueType(kind), value) == file.metadata[f"scalar.{kind}"]
    assert GgufValue.array(ValueType(kind), [value] * 3) == file.metadata[f"array.{kind}"]


def test_strings_and_nested_arrays_are_made_as_files_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(cases.every_type())
    file = open_gguf(path)
    words = GgufValue.array(ValueType.STRING, ["café", b"", b"\xff\0"])
    numbers = GgufValue.array(U32, [1, 2])
    nothing = GgufValue.array(ValueType.ARRAY, [])
    assert GgufValue.of(ValueType.STRING, "наука") == file.metadata["string"]
    assert words == file.metadata["array.string"]
    nested = GgufValue.array(ValueType.ARRAY, [numbers, words, nothing])
    assert nested == file.metadata["array.nested"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(ValueType.UINT8, 256), (ValueType.INT8, -129), (U32, -1), (U32, "1"), (U32, 1.5),
     (ValueType.FLOAT32, 1e39), (ValueType.STRING, 7), (ValueType.STRING, "\ud800"),
     (ValueType.ARRAY, [1]), (ValueType.UINT64, 2**64)],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(kind: ValueType, value: object) -> None:
    with pytest.raises(InvalidArgument, match=kind.name):
        GgufValue.of(kind, value)


def test_an_array_too_deep_is_refused() -> None:
    value = GgufValue.array(U32, [])
    for _ in range(7):
        value = GgufValue.array(ValueType.ARRAY, [value])
    with pytest.raises(InvalidArgument, match="deeper than 8"):
        GgufValue.array(ValueType.ARRAY, [value])


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_data_is_aligned_and_padded_with_zeros(alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    arrays = [np.arange(1, n + 1, dtype=np.float32) for n in (5, 1, 32)]
    sources = [TensorSource.from_array(f"t{i}", x, ggml.F32) for i, x in enumerate(arrays)]
    write_gguf(path, [("x", GgufValue.of(U32, 1))], sources, alignment)
    file, data = open_gguf(path), path.read_bytes()
    assert file.alignment == alignment
    assert len(data) % alignment == 0
    for tensor, x in zip(file.tensors, arrays, strict=True):
        assert tensor.offset % alignment == 0
        assert tensor.to_float32().tolist() == x.tolist()
        end = tensor.offset + tensor.n_bytes
        assert not any(data[end : end + -end % alignment])


def test_encoded_arrays_keep_shape_and_values(tmp_path: Path) -> None:
    path = tmp_path / "a"
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    kinds = (ggml.F32, ggml.F16, ggml.BF16)
    write_gguf(path, [], [TensorSource.from_array(f"t{k}", x, k) for k in kinds])
    made = open_gguf(path)
    for tensor in made.tensors:
        assert tensor.dims == (4, 3, 2)
        np.testing.assert_array_equal(tensor.to_float32(), x)


def test_chunks_may_be_arrays_of_any_layout(tmp_path: Path) -> None:
    path = tmp_path / "a"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    chunks = (x[:2], x.T[:, 2], memoryview(b"1234"))
    write_gguf(path, [], [TensorSource("x", (13,), ggml.F32, 52, chunks)])
    assert open_gguf(path).tensor("x").raw().tobytes() == x.tobytes() + b"1234"


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the second reader")
    original, copy = tmp_path / "a", tmp_path / "b"
    original.write_bytes(cases.every_type())
    with open_gguf(original) as file:
        # arrays of arrays and binary strings are beyond the other reader
        plain = [p for p in file.metadata.items() if p[0] not in ("array.nested", "array.string")]
        write_gguf(copy, plain, [TensorSource.copy_of(t) for t in file.tensors], 64)
        theirs = gguf.GGUFReader(copy)
        for tensor, found in zip(file.tensors, theirs.tensors, strict=True):
            assert found.name == tensor.name
            assert found.data.tobytes() == tensor.raw().tobytes()
        assert theirs.fields["scalar.11"].contents() == -(2**63)
        assert theirs.fields["general.alignment"].contents() == 64


def test_names_and_permissions_of_the_result(tmp_path: Path) -> None:
    longest = tmp_path / ("n" * 255)
    odd = os.fsencode(tmp_path) + b"/two\nlines \xff"
    before = os.umask(0o027)
    try:
        write_gguf(longest, [], [source()])
        write_gguf(odd, [], [source()])
    finally:
        os.umask(before)
    assert longest.stat().st_mode & 0o777 == 0o640
    assert len(open_gguf(odd).tensors) == 1
    write_gguf(longest, [], [])
    assert open_gguf(longest).tensors == ()


def test_writing_streams(tmp_path: Path) -> None:
    x = TensorSource("x", (1 << 24,), 0, 64 << 20, (bytes(1 << 20) for _ in range(64)))
    tracemalloc.start()
    try:
        write_gguf(tmp_path / "out", [], [x])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_float32_copy(tmp_path: Path) -> None:
    path, out = tmp_path / "a", tmp_path / "f32"
    rng = np.random.default_rng(0)
    ints = np.arange(5, dtype=np.int32)
    blocks = rng.integers(0, 120, 20 * 4, np.uint8).tobytes()
    sources = [
        TensorSource("q", (64, 2), ggml.Q4_1, 80, (blocks,)),
        TensorSource.from_array("h", np.ones((2, 3), np.float32), ggml.BF16),
        TensorSource.from_array("i", ints, ggml.I32),
    ]
    pairs = [("general.file_type", GgufValue.of(U32, 3)), ("x", GgufValue.of(U32, 9))]
    write_gguf(path, pairs, sources, 64)
    with open_gguf(path) as src:
        to_float32_gguf(src, out)
        with open_gguf(out) as made:
            assert [t.ggml_type for t in made.tensors] == [ggml.F32, ggml.F32, ggml.I32]
            assert (made.get("general.file_type"), made.get("x"), made.alignment) == (0, 9, 64)
            for name in ("q", "h"):
                a, b = src.tensor(name), made.tensor(name)
                assert (a.dims, a.to_float32().tobytes()) == (b.dims, b.raw().tobytes())
            assert made.tensor("i").raw().tobytes() == ints.tobytes()
        link = tmp_path / "link"
        link.symlink_to(path)
        for same in (path, link):
            with pytest.raises(InvalidArgument, match="one of the input files"):
                to_float32_gguf(src, same)


def test_float32_copy_of_a_format_without_a_decoder(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_gguf(path, [], [TensorSource("w", (256,), 16, 66, (bytes(66),))])
    with open_gguf(path) as src, pytest.raises(ModelError, match=r"'w': IQ2_XXS"):
        to_float32_gguf(src, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
