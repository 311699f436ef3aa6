"""Owns what an open GGUF file shows: every value type exactly, tensors, digests, the real model."""

import hashlib
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.gguf_types import ValueType
from engine.errors import InvalidArgument, ModelError
from tests.cpu import gguf_cases as cases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "every_type.gguf"
    made.write_bytes(cases.every_type())
    return made


@pytest.fixture
def file(path: Path) -> GgufFile:
    return open_gguf(path)


@pytest.mark.parametrize(("kind", "code", "value"), cases.SCALARS)
def test_a_scalar_and_an_array_of_it(kind: int, code: str, value: object, file: GgufFile) -> None:
    scalar, array = file.metadata[f"scalar.{kind}"], file.metadata[f"array.{kind}"]
    assert (scalar.type, scalar.element_type) == (kind, None)
    assert (array.type, array.element_type) == (ValueType.ARRAY, kind)
    assert scalar.value == file.get(f"scalar.{kind}") == value
    assert array.value == file.get(f"array.{kind}") == [value] * 3
    assert type(scalar.value) is type(value) is type(array.value[0])
    assert scalar.payload == struct.pack(code, value)


def test_strings_are_bytes_until_text_is_asked_for(file: GgufFile) -> None:
    assert file.metadata["string"].value == "наука".encode()
    assert file.get("string") == "наука"
    assert file.metadata["array.string"].value == ["café".encode(), b"", b"\xff\0"]
    assert file.metadata["string.binary"].value == b"\xff\0"
    assert file.get("array.empty") == []
    with pytest.raises(ModelError, match=r"'string.binary' is not valid UTF-8 at byte 0 of 2"):
        file.get("string.binary")
    with pytest.raises(ModelError, match=r"'array.string'\[2\] is not valid UTF-8"):
        file.get("array.string")


def test_nested_arrays_keep_their_shape(file: GgufFile) -> None:
    nested = file.metadata["array.nested"]
    assert nested.element_type == ValueType.ARRAY
    assert nested.value == [[1, 2], ["café".encode(), b"", b"\xff\0"], []]


def test_absent_keys_and_tensors(file: GgufFile) -> None:
    assert file.get("no.such.key") is None
    assert file.get("no.such.key", 7) == 7
    assert "a" in file
    assert "z" not in file
    with pytest.raises(ModelError, match="no tensor 'z'"):
        file.tensor("z")


def test_arrays_may_nest_eight_deep(tmp_path: Path) -> None:
    path = tmp_path / "deep.gguf"
    path.write_bytes(cases.gguf([cases.pair(b"x", cases.ARRAY, cases.nested_arrays(8))]))
    assert open_gguf(path).get("x") == [[[[[[[[]]]]]]]]


def test_tensors_in_file_order(file: GgufFile, path: Path) -> None:
    a, b = file.tensors
    assert [a.name, b.name] == ["a", "blk.0.b"]
    assert (a.dims, a.shape, a.ggml_type, a.n_elements, a.n_bytes) == ((4, 3), (3, 4), 0, 12, 48)
    assert (b.dims, b.shape, b.ggml_type, b.n_elements, b.n_bytes) == (
        (32, 1, 2), (2, 1, 32), 3, 64, 40,
    )  # fmt: skip
    assert b.offset == a.offset + 64
    assert b.raw().tobytes() == path.read_bytes()[b.offset : b.offset + 40]
    assert not b.raw().flags.writeable
    np.testing.assert_array_equal(a.to_float32(), np.arange(12, dtype=np.float32).reshape(3, 4))
    assert file.tensor("blk.0.b") is b


def test_order_gaps_and_alignment_of_data_are_free(tmp_path: Path) -> None:
    infos = [cases.tensor(b"late", (1,), 0, 72), cases.tensor(b"early", (2,), 0, 8)]
    data = bytes(8) + struct.pack("<2f", 1, 2) + bytes(56) + struct.pack("<f", 3)
    key = cases.pair(b"general.alignment", cases.UINT32, cases.u32(8))
    path = tmp_path / "gaps.gguf"
    path.write_bytes(cases.gguf([key], infos, data, alignment=8))
    file = open_gguf(path)
    assert file.alignment == 8
    assert [t.to_float32().tolist() for t in file.tensors] == [[3.0], [1.0, 2.0]]


def test_a_file_of_nothing_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    path.write_bytes(cases.gguf())
    file = open_gguf(path)
    assert (file.metadata, file.tensors, file.alignment) == ({}, (), 32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_reported_where_it_is(value: float, tmp_path: Path) -> None:
    x = np.zeros((3, 5), np.float32)
    x[2, 1] = value
    path = tmp_path / "bad.gguf"
    path.write_bytes(cases.gguf((), [cases.tensor(b"w", (5, 3))], x.tobytes()))
    tensor = open_gguf(path).tensor("w")
    assert np.array_equal(tensor.to_float32(), x, equal_nan=True)
    with pytest.raises(ModelError, match=r"tensor 'w': element \[2, 1\] is (nan|-?inf)"):
        tensor.to_float32(check_finite=True)


def test_an_infinite_scale_in_a_block_is_reported(tmp_path: Path) -> None:
    scale = np.float16(np.inf).tobytes() + bytes(18)
    path = tmp_path / "scale.gguf"
    path.write_bytes(cases.gguf((), [cases.tensor(b"w", (32,), cases.Q4_1)], scale))
    with pytest.raises(ModelError, match=r"tensor 'w': element \[0\] is nan"):
        open_gguf(path).tensor("w").to_float32(check_finite=True)


def test_a_format_without_a_decoder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "iq.gguf"
    path.write_bytes(cases.gguf((), [cases.tensor(b"w", (256,), 16)], bytes(66)))
    tensor = open_gguf(path).tensor("w")
    assert tensor.n_bytes == 66
    with pytest.raises(ModelError, match=r"tensor 'w': IQ2_XXS \(type 16\)"):
        tensor.to_float32()


def test_digest_of_the_whole_file(file: GgufFile, path: Path) -> None:
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert file.sha256() == file.sha256() == expected


def test_closing_keeps_what_was_handed_out(path: Path) -> None:
    with open_gguf(path) as file:
        tensor, raw, value = file.tensors[0], file.tensors[0].raw(), file.metadata["string"]
    path.unlink()
    assert raw.view("<f4").sum() == 66
    assert value.value == "наука".encode()
    with pytest.raises(InvalidArgument, match="closed"):
        tensor.raw()
    file.close()


def test_the_real_model(smollm2_path: Path) -> None:
    start = time.process_time()
    file = open_gguf(smollm2_path)
    assert time.process_time() - start < 0.5
    assert file.get("general.architecture") == "llama"
    assert len(file.get("tokenizer.ggml.tokens")) == 49152
    assert len(file.get("tokenizer.ggml.merges")) == 48900
    assert len(file.tensors) == 272
    assert file.tensor("token_embd.weight").shape == (49152, 576)


def test_agrees_with_the_gguf_package(smollm2_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the second reader")
    theirs = gguf.GGUFReader(smollm2_path)
    ours = open_gguf(smollm2_path)
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in keys:
        assert ours.get(key) == theirs.fields[key].contents(), key
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert (a.name, a.dims, a.ggml_type) == (b.name, tuple(b.shape), b.tensor_type)
        assert (a.offset, a.n_bytes) == (b.data_offset, b.n_bytes)
