"""The safetensors reader: sound files exactly, and every lie of a header refused with its value."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import row_blocks, safetensors
from engine.artifacts.safetensors import DTYPES, SafetensorsFile
from engine.errors import InvalidArgument, ModelError


def pack(header: Any, data: bytes = b"", padding: str = "") -> bytes:
    """A file of a header (text, or what becomes JSON) and its data."""
    text = header if isinstance(header, str) else json.dumps(header)
    raw = (text + padding).encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def put(tmp_path: Path) -> Any:
    """Writes bytes as a file and opens it."""

    def opened(raw: bytes) -> SafetensorsFile:
        path = tmp_path / "x.safetensors"
        path.write_bytes(raw)
        return SafetensorsFile(path)

    return opened


def test_floats_come_as_they_are_stored(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two rows a block, so that the last block is short.
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 24)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3)).astype("<f4")
    half = rng.standard_normal((4, 2, 3)).astype("<f2")
    words = rng.integers(0, 1 << 16, 7, dtype=np.uint16)
    data = x.tobytes() + half.tobytes() + words.tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        # Not in the order of the data, as writers may.
        "half": entry("F16", [4, 2, 3], 60, 108),
        "x": entry("F32", [5, 3], 0, 60),
        "words": entry("BF16", [7], 108, 122),
    }
    file = put(pack(header, data, padding="   "))
    assert list(file.tensors) == ["x", "half", "words"]
    for name, stored in (("x", x), ("half", half), ("words", words)):
        blocks = [np.array(block) for block in file.tensors[name].blocks()]
        assert all(block.dtype == stored.dtype for block in blocks)
        assert np.array_equal(np.concatenate(blocks), stored)
    assert [len(block) for block in file.tensors["x"].blocks()] == [2, 2, 1]


def test_data_off_its_alignment_is_read(put: Any) -> None:
    header = {"a": entry("U8", [3], 0, 3), "b": entry("F32", [2], 3, 11)}
    file = put(pack(header, b"abc" + np.array([1.5, -2.0], "<f4").tobytes()))
    assert np.concatenate(list(file.tensors["b"].blocks())).tolist() == [1.5, -2.0]


def test_every_dtype_has_its_length_and_only_floats_have_rows(put: Any) -> None:
    for dtype, n_bytes in DTYPES.items():
        file = put(pack({"t": entry(dtype, [3], 0, 3 * n_bytes)}, bytes(3 * n_bytes)))
        if dtype in safetensors.FLOATS:
            assert len(np.concatenate(list(file.tensors["t"].blocks()))) == 3
        else:
            with pytest.raises(InvalidArgument, match=dtype):
                list(file.tensors["t"].blocks())


def test_a_file_without_tensors_and_empty_ones_are_sound(put: Any) -> None:
    assert not put(pack({})).tensors
    scalar = put(pack({"s": entry("F32", [], 0, 4), "e": entry("F32", [0, 4], 4, 4)}, bytes(4)))
    assert scalar.tensors["s"].shape == ()
    assert list(scalar.tensors["e"].blocks()) == []


ONE = {"t": entry("F32", [2], 0, 8)}
BAD = {
    "empty header": (pack(""), "does not begin"),
    "short": (b"\x02\0\0", "not a safetensors file: 3 bytes"),
    "length past the end": ((1 << 20).to_bytes(8, "little") + b"{}", "2 bytes are left"),
    "length of all memory": ((1 << 63).to_bytes(8, "little") + b"{}", "the limit is 8388608"),
    "big-endian length": ((2).to_bytes(8, "big") + b"{}", "the limit is"),
    "array": (pack("[]"), "does not begin"),
    "not JSON": (pack("{"), "not JSON"),
    "not UTF-8": (b"\x04\0\0\0\0\0\0\0{\xff\xff}", "not UTF-8 at byte 1"),
    "twice": (pack('{"a":1,"a":2}'), "'a' occurs twice"),
    "NaN": (pack('{"a": NaN}'), "NaN is not"),
    "deep": (pack('{"a":' + "[" * 100_000), "nested too deeply"),
    "digits": (pack('{"a":' + "9" * 5000 + "}"), "not JSON"),
    "metadata": (pack({"__metadata__": {"a": 1}}), "not a map of texts"),
    "entry": (pack({"t": 5}), "not just dtype, shape and data_offsets"),
    "field too many": (pack({"t": {**ONE["t"], "x": 1}}, bytes(8)), "not just"),
    "field missing": (pack({"t": {"dtype": "F32", "shape": [2]}}, bytes(8)), "not just"),
    "dtype": (pack({"t": entry("Q4", [2], 0, 8)}, bytes(8)), "unknown dtype 'Q4'"),
    "dtype type": (pack({"t": {**ONE["t"], "dtype": [1]}}, bytes(8)), "unknown dtype"),
    "negative": (pack({"t": entry("F32", [-2], 0, 8)}, bytes(8)), "shape is"),
    "bool": (pack({"t": entry("F32", [True], 0, 4)}, bytes(4)), "shape is"),
    "float": (pack({"t": entry("F32", [2.0], 0, 8)}, bytes(8)), "shape is"),
    "dims": (pack({"t": entry("U8", [1] * 9, 0, 1)}, bytes(1)), "at most 8 numbers"),
    "product": (pack({"t": entry("U8", [1 << 40, 1 << 40], 0, 1)}, b"x"), "elements"),
    # Wraps around to 8 bytes where products have 64 bits.
    "wrap": (pack({"t": entry("F32", [(1 << 62) + 2], 0, 8)}, bytes(8)), "takes"),
    "length": (pack({"t": entry("F32", [2], 0, 12)}, bytes(12)), "takes 8 bytes"),
    "backwards": (pack({"t": entry("F32", [2], 8, 0)}, bytes(8)), "takes 8 bytes"),
    "one offset": (pack({"t": {**ONE["t"], "data_offsets": [8]}}, bytes(8)), "takes 8"),
    "out of file": (pack({"t": entry("F32", [2], 4, 12)}, bytes(8)), "ends at data byte 12"),
    "gap": (pack({"t": entry("F32", [2], 4, 12)}, bytes(12)), "leaves a gap"),
    "overlap": (
        pack({"t": entry("F32", [2], 0, 8), "u": entry("F32", [2], 4, 12)}, bytes(12)),
        "'u' begins at data byte 4, not 8: it overlaps",
    ),
    "rest": (pack(ONE, bytes(9)), "tensors end at byte"),
    "truncated": (pack(ONE, bytes(7)), "ends at data byte 8"),
    "empty name": (pack({"": ONE["t"]}, bytes(8)), "1 to 256 bytes"),
    "long name": (pack({"n" * 257: ONE["t"]}, bytes(8)), "1 to 256 bytes"),
    "NUL": (pack('{"a\\u0000b": 1}'), "no NUL"),
    "surrogate": (pack('{"\\ud800": 1}'), "not text"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_lie_is_refused_at_once_with_its_value(case: str, put: Any) -> None:
    raw, message = BAD[case]
    started = time.process_time()
    with pytest.raises(ModelError) as caught:
        put(raw)
    assert message in str(caught.value)
    assert "x.safetensors" in str(caught.value)
    assert time.process_time() - started < 1


def test_too_many_tensors_and_duplicates_in_a_crowd_cost_little(put: Any) -> None:
    empty = '"dtype":"U8","shape":[0],"data_offsets":[0,0]'
    many = ",".join(f'"{i}":{{{empty}}}' for i in range(32_769))
    with pytest.raises(ModelError, match="32769 tensors"):
        put(pack("{" + many + "}"))
    names = ",".join(f'"{i}":0' for i in range(200_000))
    started = time.process_time()
    with pytest.raises(ModelError, match="occurs twice"):
        put(pack("{" + names + ',"7":1}'))
    assert time.process_time() - started < 2


def test_every_truncation_and_every_flipped_header_byte_is_refused_or_harmless(put: Any) -> None:
    raw = pack({"w": entry("F32", [2, 2], 0, 16), "v": entry("BF16", [3], 16, 22)}, bytes(22))
    for n_bytes in range(1, len(raw)):
        with pytest.raises(ModelError):
            put(raw[:n_bytes])
    for at in range(len(raw) - 22):
        for bit in (1, 128):
            changed = bytearray(raw)
            changed[at] ^= bit
            try:
                found = put(bytes(changed)).tensors
            except ModelError:
                continue
            # Only another name, or the same bytes under a dtype of the same length, gets through.
            assert sum(tensor.n_bytes for tensor in found.values()) == 22


def test_what_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ModelError, match="cannot open"):
            SafetensorsFile(path)
