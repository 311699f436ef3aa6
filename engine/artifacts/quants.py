"""Owns the arithmetic of tensor number formats: stored blocks to float32, arrays to stored bytes.

Knows nothing of files, names or shapes. The result is bit for bit the one of ggml's own row
decoders, so the order of every multiplication and addition below is part of the contract. A NaN or
infinite scale decodes as IEEE arithmetic says; finding it is the caller's business.

Block layouts (all little-endian; d, m are float16; q is the stored integer):

    Q8_0  d, q int8[32]                       x = q d
    Q4_0  d, 16 bytes                         x = (q - 8) d         low nibbles first, then high
    Q4_1  d, m, 16 bytes                      x = q d + m
    Q5_0  d, fifth bits u32, 16 bytes         x = (q - 16) d
    Q5_1  d, m, fifth bits u32, 16 bytes      x = q d + m
    Q4_K  d, m, 12 scale bytes, 128 bytes     x = (d s) q - (m t)   8 groups of 32, 6-bit s and t
    Q5_K  d, m, 12 scale bytes, 32, 128       as Q4_K with a fifth bit: bit g of byte i
    Q6_K  128 low, 64 high, int8 s[16], d     x = (d s) (q - 32)    16 groups of 16
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from engine.artifacts import ggml_types as ggml
from engine.artifacts.ggml_types import GGML_TYPES, type_label
from engine.errors import InvalidArgument, Unsupported

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Elements decoded at a time: keeps the temporaries under a few MiB and inside the cache.
CHUNK_ELEMENTS = 1 << 17


def decode_into(raw: Bytes, ggml_type: int, out: Floats) -> None:
    """Decode raw uint8 [n_bytes] into out float32 [n_elements], both flat and whole blocks.

    Unsupported when the format has no decoder here, InvalidArgument when the lengths disagree.
    """
    decoder = _DECODERS.get(ggml_type)
    if decoder is None:
        raise Unsupported(f"{type_label(ggml_type)} cannot be decoded to float32")
    kind = GGML_TYPES[ggml_type]
    n_blocks, left = divmod(out.size, kind.block_elements)
    if left or raw.size != n_blocks * kind.block_bytes:
        raise InvalidArgument(
            f"{kind.name}: {raw.size} bytes do not hold {out.size} elements"
            f" in blocks of {kind.block_elements} elements, {kind.block_bytes} bytes"
        )
    blocks = raw.reshape(n_blocks, kind.block_bytes)
    values = out.reshape(n_blocks, kind.block_elements)
    step = CHUNK_ELEMENTS // kind.block_elements
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, n_blocks, step):
            decoder(blocks[start : start + step], values[start : start + step])


def float32_chunks(raw: Bytes, ggml_type: int) -> Iterator[Floats]:
    """The same values in order, as fresh flat arrays of at most `CHUNK_ELEMENTS` elements."""
    kind = GGML_TYPES[ggml_type]
    step = CHUNK_ELEMENTS // kind.block_elements * kind.block_bytes
    for start in range(0, raw.size, step):
        part = raw[start : start + step]
        out = np.empty(part.size // kind.block_bytes * kind.block_elements, np.float32)
        decode_into(part, ggml_type, out)
        yield out


def can_decode(ggml_type: int) -> bool:
    """Whether `decode_into` knows the format."""
    return ggml_type in _DECODERS


def encode(x: npt.NDArray[np.generic], ggml_type: int) -> bytes:
    """The stored bytes of x, any shape, in C order.

    F16 and BF16 round float32 to nearest, ties to even, and a NaN stays a NaN; F32, F64 and the
    integer types take an array of just that dtype and copy it. InvalidArgument otherwise.
    """
    expected = RAW_DTYPES.get(ggml_type, np.dtype("<f4"))
    if ggml_type not in RAW_DTYPES and ggml_type not in (ggml.F16, ggml.BF16):
        raise InvalidArgument(f"{type_label(ggml_type)} cannot be written from an array")
    if x.dtype != expected:
        raise InvalidArgument(
            f"{type_label(ggml_type)} is written from {expected.name}, not from {x.dtype.name}"
        )
    x = np.ascontiguousarray(x)
    if ggml_type == ggml.F16:
        with np.errstate(over="ignore", under="ignore"):
            return x.astype("<f2").tobytes()
    if ggml_type == ggml.BF16:
        return _round_to_bf16(x.view(np.uint32)).astype("<u2").tobytes()
    return x.astype(expected, copy=False).tobytes()


def _round_to_bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    # The carry of the half-way constant would turn a NaN into an infinity or a zero.
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(is_nan, (bits >> 16) | 64, rounded)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 [n_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _f32(blocks: Bytes, y: Floats) -> None:
    y[:] = np.ascontiguousarray(blocks).view("<f4")


def _f16(blocks: Bytes, y: Floats) -> None:
    y[:] = np.ascontiguousarray(blocks).view("<f2")


def _bf16(blocks: Bytes, y: Floats) -> None:
    bits = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    y[:] = (bits << 16).view(np.float32)


def _q8_0(blocks: Bytes, y: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=y)


def _nibbles(packed: Bytes) -> Bytes:
    """packed [n, 16] -> [n, 32]: all low nibbles, then all high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit i of the four bytes at `at`, as 0 or 16, [n, 32]."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(blocks: Bytes, y: Floats) -> None:
    q = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    np.multiply(q, _half(blocks, 0), out=y)


def _q4_1(blocks: Bytes, y: Floats) -> None:
    np.multiply(_nibbles(blocks[:, 4:]), _half(blocks, 0), out=y)
    y += _half(blocks, 2)


def _q5_0(blocks: Bytes, y: Floats) -> None:
    q = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).view(np.int8) - np.int8(16)
    np.multiply(q, _half(blocks, 0), out=y)


def _q5_1(blocks: Bytes, y: Floats) -> None:
    np.multiply(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), out=y)
    y += _half(blocks, 2)


def _group_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """packed [n, 12] -> s, t [n, 8], six bits each.

    Groups 0-3 lie in the low six bits of bytes 0-3 (s) and 4-7 (t); of groups 4-7 the low four bits
    lie in bytes 8-11 and the top two in what the first eight bytes have left.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    s = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    t = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return s, t


def _grouped(blocks: Bytes, q: Bytes, y: Floats) -> None:
    """The part Q4_K and Q5_K share; q [n, 8, 32]."""
    s, t = _group_scales(blocks[:, 4:16])
    x = y.reshape(-1, 8, 32)
    np.multiply(q, (_half(blocks, 0) * s)[:, :, None], out=x)
    x -= (_half(blocks, 2) * t)[:, :, None]


def _paired_nibbles(packed: Bytes) -> Bytes:
    """packed [n, 128] -> [n, 8, 32]: each 32 bytes hold group 2j low and group 2j+1 high."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes, y: Floats) -> None:
    _grouped(blocks, _paired_nibbles(blocks[:, 16:]), y)


def _q5_k(blocks: Bytes, y: Floats) -> None:
    group = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> group & np.uint8(1)) << np.uint8(4)
    _grouped(blocks, _paired_nibbles(blocks[:, 48:]) | fifth, y)


def _q6_k(blocks: Bytes, y: Floats) -> None:
    # Each half of the block: rows of 32 = low nibbles of 64 bytes, then their high nibbles.
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    shift = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shift & 3) << 4
    q = (low | high).view(np.int8) - np.int8(32)
    s = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    np.multiply(q.reshape(-1, 16, 16), s[:, :, None], out=y.reshape(-1, 16, 16))


_DECODERS: dict[int, Callable[[Bytes, Floats], None]] = {
    ggml.F32: _f32,
    ggml.F16: _f16,
    ggml.BF16: _bf16,
    ggml.Q8_0: _q8_0,
    ggml.Q4_0: _q4_0,
    ggml.Q4_1: _q4_1,
    ggml.Q5_0: _q5_0,
    ggml.Q5_1: _q5_1,
    ggml.Q4_K: _q4_k,
    ggml.Q5_K: _q5_k,
    ggml.Q6_K: _q6_k,
}

# Formats that are plain arrays: written and read back without any arithmetic.
RAW_DTYPES: dict[int, np.dtype[np.generic]] = {
    ggml.F32: np.dtype("<f4"),
    ggml.F64: np.dtype("<f8"),
    ggml.I8: np.dtype("i1"),
    ggml.I16: np.dtype("<i2"),
    ggml.I32: np.dtype("<i4"),
    ggml.I64: np.dtype("<i8"),
}
