"""Owns what the bits of matrix operands mean, written from the formats' definitions alone.

It shares nothing with the emulator, which it judges. Every function takes unsigned codes and gives
float64 values, or the other way round for values that the format holds exactly.
"""

from collections.abc import Callable

import numpy as np

from ptx.numerics import Array, round_to_bf16, widen_bf16

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3_NAN = 0x7F


def e2m1(codes: Array) -> Array:
    """Bit 3 is the sign; the other three count through eight magnitudes."""
    values: Array = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]
    return values


def e4m3(codes: Array) -> Array:
    """Sign, four bits of exponent with bias 7, three of fraction; 0x7F and 0xFF are NaN."""
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7) / 8
    normal = (1 + fraction) * 2.0 ** (exponent - 7)
    value = np.where(exponent == 0, fraction * 2.0**-6, normal)
    value = np.where(codes & 0x7F == E4M3_NAN, np.nan, value)
    return np.where(codes & 0x80, -value, value)


def bf16(codes: Array) -> Array:
    """The upper half of a float32."""
    return widen_bf16(codes).astype(np.float64)


def f16(codes: Array) -> Array:
    """The IEEE half."""
    return codes.view(np.float16).astype(np.float64)


def tf32(codes: Array) -> Array:
    """A float32 whose low 13 bits are zero."""
    assert not (codes & 0x1FFF).any()
    return codes.view(np.float32).astype(np.float64)


def of_bf16(values: Array) -> Array:
    """The nearest bf16."""
    return round_to_bf16(values)


def of_f16(values: Array) -> Array:
    """The nearest half."""
    return values.astype(np.float16).view(np.uint16)


def of_tf32(values: Array) -> Array:
    """The float32 with its low 13 bits cut off."""
    cut: Array = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return cut


def of_e4m3(values: Array) -> Array:
    """The nearest e4m3 of values up to 448."""
    magnitudes = e4m3(np.arange(E4M3_NAN))
    nearest = np.abs(np.abs(values)[..., None] - magnitudes).argmin(axis=-1)
    codes: Array = (nearest | np.where(values < 0, 0x80, 0)).astype(np.uint8)
    return codes


# The value of a code and the code of a value, by the word that PTX has for the format.
FORMATS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "bf16": (bf16, of_bf16), "f16": (f16, of_f16), "tf32": (tf32, of_tf32),
    "e4m3": (e4m3, of_e4m3),
}


def packed_nibbles(codes: Array) -> Array:
    """Codes [N, K] of 4 bits as bytes [N, K / 2], the first of two in the low half."""
    pairs: Array = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return pairs
