"""Owns the proof that tensor formats decode bit for bit as ggml does, and arrays round right."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.artifacts import ggml_types as ggml
from engine.artifacts import quants
from engine.errors import InvalidArgument, Unsupported

QUANTISED = {
    ggml.Q4_0: "q4_0", ggml.Q4_1: "q4_1", ggml.Q5_0: "q5_0", ggml.Q5_1: "q5_1",
    ggml.Q8_0: "q8_0", ggml.Q4_K: "q4_K", ggml.Q5_K: "q5_K", ggml.Q6_K: "q6_K",
}  # fmt: skip
FLOATS = (ggml.F32, ggml.F16, ggml.BF16)
IDS = [ggml.GGML_TYPES[t].name for t in (*QUANTISED, *FLOATS)]


@pytest.fixture(scope="module")
def libggml() -> ctypes.CDLL:
    module = pytest.importorskip("xllamacpp", reason="xllamacpp carries ggml's own decoders")
    return ctypes.CDLL(str(next(Path(module.__file__).parent.glob("xllamacpp*.so"))))


def random_blocks(ggml_type: int, n_blocks: int) -> npt.NDArray[np.uint8]:
    """Any bytes at all: every scale, NaN and infinity included, and every integer occur."""
    rng = np.random.default_rng(ggml_type)
    return rng.integers(0, 256, n_blocks * ggml.GGML_TYPES[ggml_type].block_bytes, np.uint8)


def decoded(raw: npt.NDArray[np.uint8], ggml_type: int) -> npt.NDArray[np.float32]:
    kind = ggml.GGML_TYPES[ggml_type]
    out = np.full(raw.size // kind.block_bytes * kind.block_elements, np.nan, np.float32)
    quants.decode_into(raw, ggml_type, out)
    return out


def assert_same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    """Equal bits, signed zeros included; any NaN equals any NaN."""
    same = ours.view(np.uint32) == theirs.view(np.uint32)
    same |= np.isnan(ours) & np.isnan(theirs)
    assert same.all(), f"{(~same).sum()} differ, first at {same.argmin()}"


@pytest.mark.parametrize("ggml_type", QUANTISED, ids=QUANTISED.get)
def test_blocks_decode_as_in_ggml(ggml_type: int, libggml: ctypes.CDLL) -> None:
    raw = random_blocks(ggml_type, 4000)
    ours = decoded(raw, ggml_type)
    theirs = np.empty_like(ours)
    decode = getattr(libggml, f"dequantize_row_{QUANTISED[ggml_type]}")
    decode.argtypes, decode.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    decode(raw.ctypes.data, theirs.ctypes.data, theirs.size)
    assert np.isfinite(ours).mean() > 0.8
    assert_same_bits(ours, theirs)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("ggml_type", [*QUANTISED, *FLOATS], ids=IDS)
def test_blocks_decode_as_in_the_gguf_package(ggml_type: int) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the second decoder")
    raw = random_blocks(ggml_type, 1000)
    rows = raw.reshape(10, -1)
    theirs = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(ggml_type)).ravel()
    assert_same_bits(decoded(raw, ggml_type), theirs)


def test_the_table_agrees_with_ggml(libggml: ctypes.CDLL) -> None:
    libggml.ggml_type_name.restype = ctypes.c_char_p
    libggml.ggml_type_size.restype = ctypes.c_size_t
    libggml.ggml_blck_size.restype = ctypes.c_int64
    for ggml_type, kind in ggml.GGML_TYPES.items():
        assert libggml.ggml_type_name(ggml_type).decode().upper() == kind.name.upper()
        assert libggml.ggml_blck_size(ggml_type) == kind.block_elements, kind
        assert libggml.ggml_type_size(ggml_type) == kind.block_bytes, kind


@pytest.mark.parametrize("ggml_type", [*QUANTISED, *FLOATS], ids=IDS)
def test_the_length_of_a_piece_changes_nothing(
    ggml_type: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = random_blocks(ggml_type, 37)
    whole = decoded(raw, ggml_type)
    monkeypatch.setattr(quants, "CHUNK_ELEMENTS", 1024)
    chunks = list(quants.float32_chunks(raw, ggml_type))
    assert max(chunk.size for chunk in chunks) <= 1024
    assert np.concatenate(chunks).tobytes() == whole.tobytes()
    assert decoded(raw, ggml_type).tobytes() == whole.tobytes()


def test_no_blocks_decode_to_nothing() -> None:
    for ggml_type in QUANTISED:
        assert decoded(np.empty(0, np.uint8), ggml_type).size == 0


@pytest.mark.parametrize(
    ("ggml_type", "name"), [(ggml.F16, "fp32_to_fp16"), (ggml.BF16, "fp32_to_bf16")]
)
def test_floats_round_as_in_ggml(ggml_type: int, name: str, libggml: ctypes.CDLL) -> None:
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, 100_000, np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    x = np.concatenate((bits, ties, ties << 3)).view(np.float32)
    theirs = np.empty(x.size, np.uint16)
    convert: Callable[..., None] = getattr(libggml, f"ggml_{name}_row")
    convert(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(theirs.ctypes.data),
            ctypes.c_int64(x.size))  # fmt: skip
    ours = np.frombuffer(quants.encode(x, ggml_type), np.uint16)
    nan = np.isnan(x)
    assert nan.sum() > 100
    assert (ours[~nan] == theirs[~nan]).all()
    assert np.isnan(decoded(ours.view(np.uint8), ggml_type)[nan]).all()


@pytest.mark.parametrize("ggml_type", quants.RAW_DTYPES)
def test_plain_arrays_are_copied(ggml_type: int) -> None:
    x = np.arange(-6, 6).astype(quants.RAW_DTYPES[ggml_type]).reshape(3, 4)
    for made in (x, x.T, x[:, ::2]):
        assert quants.encode(made, ggml_type) == np.ascontiguousarray(made).tobytes()


def test_encode_refuses_what_it_would_have_to_convert() -> None:
    x = np.zeros(4, np.float64)
    for ggml_type in (ggml.F32, ggml.F16, ggml.BF16, ggml.I32):
        with pytest.raises(InvalidArgument, match="float64"):
            quants.encode(x, ggml_type)
    with pytest.raises(InvalidArgument, match=r"Q4_0 \(type 2\)"):
        quants.encode(np.zeros(32, np.float32), ggml.Q4_0)
    with pytest.raises(InvalidArgument, match="type 99"):
        quants.encode(x, 99)


def test_decode_refuses_lengths_and_formats() -> None:
    out = np.empty(32, np.float32)
    with pytest.raises(InvalidArgument, match="Q4_0: 17 bytes do not hold 32 elements"):
        quants.decode_into(np.zeros(17, np.uint8), ggml.Q4_0, out)
    with pytest.raises(InvalidArgument, match="31 elements"):
        quants.decode_into(np.zeros(18, np.uint8), ggml.Q4_0, out[:31])
    with pytest.raises(Unsupported, match="IQ2_XXS"):
        quants.decode_into(np.zeros(66, np.uint8), 16, np.empty(256, np.float32))
