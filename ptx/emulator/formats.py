"""Owns PTX's types as numpy sees them, and the small float grids (f16, bf16, tf32, fp8, fp4).

It must not know instructions. Contract: the PTX ISA's sections on fundamental, alternate and
packed types. Values are widened to float64, where they and their products are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from ptx.numerics import Array


class Type(NamedTuple):
    """A PTX type: `kind` says how bits are read; `n_packed` values share one register."""

    name: str
    n_bits: int
    kind: str
    dtype: np.dtype
    n_packed: int = 1


def _table() -> dict[str, Type]:
    rows = [Type("pred", 1, "pred", np.dtype(np.bool_))]
    for n_bits in (8, 16, 32, 64):
        for kind, word in (("b", "uint"), ("u", "uint"), ("s", "int")):
            rows.append(Type(f"{kind}{n_bits}", n_bits, kind, np.dtype(f"{word}{n_bits}")))
    u16, u32 = np.dtype(np.uint16), np.dtype(np.uint32)
    rows += [
        Type("f32", 32, "f32", np.dtype(np.float32)),
        Type("f64", 64, "f64", np.dtype(np.float64)),
        Type("f16", 16, "f16", u16),
        Type("bf16", 16, "bf16", u16),
        Type("f16x2", 32, "f16", u16, 2),
        Type("bf16x2", 32, "bf16", u16, 2),
        Type("f32x2", 64, "f32", np.dtype(np.float32), 2),
        Type("tf32", 32, "b", u32),
        Type("b128", 128, "b", np.dtype(np.uint64), 2),
        *(Type(f"{kind}16x2", 32, kind, np.dtype(f"{word}16"), 2)
          for kind, word in (("u", "uint"), ("s", "int"))),
    ]
    return {row.name: row for row in rows}


TYPES = _table()


@dataclass(frozen=True)
class Grid:
    """A binary float grid: significand bits with the leading one, exponent range, largest value.

    `has_infinity` tells where an overflow goes when `satfinite` is not asked for.
    """

    n_digits: int
    min_exponent: int
    largest: float
    has_infinity: bool
    n_bits: int


GRIDS = {
    "f32": Grid(24, -126, float(np.finfo(np.float32).max), True, 32),
    "f16": Grid(11, -14, 65504.0, True, 16),
    "bf16": Grid(8, -126, 255.0 * 2.0**120, True, 16),
    "tf32": Grid(11, -126, 2047.0 * 2.0**117, True, 32),
    "e4m3": Grid(4, -6, 448.0, False, 8),
    "e5m2": Grid(3, -14, 57344.0, True, 8),
    "e3m2": Grid(3, -2, 28.0, False, 6),
    "e2m3": Grid(4, 0, 7.5, False, 6),
    "e2m1": Grid(2, 0, 6.0, False, 4),
}
NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "e4m3": 0x7F, "e5m2": 0x7F}


def widen(raw: Array, kind: str) -> Array:
    """Bits of a small float as float64, same shape."""
    if kind == "f16":
        return raw.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind in ("f32", "f64"):
        return raw.astype(np.float64)
    return np.asarray(small_values(kind)[raw])


def narrow(values: Array, kind: str, mode: str = "rn") -> Array:
    """Float64 values rounded once onto the grid, as bits; NaN is canonical.

    Values whose rounding to float64 was itself inexact must come rounded to odd.
    """
    if kind == "f64":
        return values
    if kind == "f32":
        return to_f32(values, mode)
    if kind == "f16" and mode == "rn":
        bits = np.asarray(values, np.float64).astype(np.float16).view(np.uint16)
    elif kind == "f16":
        bits = quantise(values, kind, mode).astype(np.float16).view(np.uint16)
    else:
        single = quantise(values, kind, mode).astype(np.float32)
        bits = (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(NANS[kind]), bits)


def to_f32(values: Array, mode: str = "rn") -> Array:
    """Float64 (exact, or rounded to odd) to float32 in rounding mode rn, rz, rm or rp."""
    single = np.asarray(values, np.float64).astype(np.float32)
    if mode != "rn":
        error = values - single.astype(np.float64)
        error = np.where(np.isfinite(values), error, 0.0)
        if mode == "rz":
            away = error * np.sign(single) < 0
            single = np.where(away, np.nextafter(single, np.float32(0)), single)
        elif mode == "rm":
            single = np.where(error < 0, np.nextafter(single, np.float32(-np.inf)), single)
        else:
            single = np.where(error > 0, np.nextafter(single, np.float32(np.inf)), single)
    return canonical(single)


def canonical(single: Array) -> Array:
    """Float32 with every NaN replaced by the one bit pattern that the ISA gives."""
    nan = np.isnan(single)
    if nan.any():
        single = np.array(single, np.float32)
        single.view(np.uint32)[nan] = 0x7FFFFFFF
    return single


def quantise(values: Array, kind: str, mode: str = "rn") -> Array:
    """Float64 values moved onto a grid, still float64; overflow as the mode and grid say."""
    grid = GRIDS[kind]
    values = np.asarray(values, np.float64)
    _, exponent = np.frexp(values)
    step = np.maximum(exponent - 1, grid.min_exponent) - (grid.n_digits - 1)
    scaled = np.ldexp(values, -step)
    rounded = np.ldexp(ROUNDINGS[mode](scaled), step)
    over = np.abs(rounded) > grid.largest
    if over.any():
        limit = np.where(_overflows_to_limit(values, mode), grid.largest, np.inf)
        limit = np.where(np.isinf(values), np.inf, limit)
        rounded = np.where(over, np.copysign(limit, values), rounded)
    return np.where(np.isfinite(values), rounded, values)


def _overflows_to_limit(values: Array, mode: str) -> Array:
    """Where a directed mode stops at the largest finite value."""
    if mode == "rz":
        return np.ones(values.shape, bool)
    return {"rm": values > 0, "rp": values < 0}.get(mode, np.zeros(values.shape, bool))


def half_away(values: Array) -> Array:
    """Nearest integer, ties away from zero."""
    return np.asarray(np.trunc(values + np.copysign(0.5, values)))


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil, "rna": half_away,
}


@cache
def small_values(kind: str) -> Array:
    """All values of a 4-, 6- or 8-bit grid by their bits; ue8m0 and ue4m3 scales included."""
    if kind == "ue8m0":
        return np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)
    if kind == "ue4m3":
        return np.asarray(np.abs(small_values("e4m3")))
    grid = GRIDS[kind]
    n_mantissa = grid.n_digits - 1
    codes = np.arange(1 << grid.n_bits)
    mantissa = codes & ((1 << n_mantissa) - 1)
    exponent = (codes >> n_mantissa) & ((1 << (grid.n_bits - 1 - n_mantissa)) - 1)
    normal = exponent > 0
    significand = mantissa + np.where(normal, 1 << n_mantissa, 0)
    power = np.where(normal, exponent - 1, 0) + grid.min_exponent - n_mantissa
    values = np.ldexp(significand.astype(np.float64), power)
    if kind == "e4m3":
        values[codes & 0x7F == 0x7F] = np.nan
    if kind == "e5m2":
        values[codes & 0x7F == 0x7C] = np.inf
        values[codes & 0x7F > 0x7C] = np.nan
    return np.asarray(np.where(codes >> (grid.n_bits - 1), -values, values))


def encode_small(values: Array, kind: str, mode: str = "rn", satfinite: bool = True) -> Array:
    """Float64 values to bits of a 4-, 6- or 8-bit grid, uint8."""
    grid = GRIDS[kind]
    rounded = quantise(values, kind, mode)
    half = 1 << (grid.n_bits - 1)
    table = small_values(kind)[:half]
    finite = table[np.isfinite(table)]
    if satfinite:
        rounded = np.clip(rounded, -grid.largest, grid.largest)
    bits = np.searchsorted(finite, np.minimum(np.abs(rounded), grid.largest)).astype(np.uint8)
    if grid.has_infinity:
        bits = np.where(np.isinf(rounded), np.uint8(0x7C), bits)
    elif kind in NANS:
        bits = np.where(np.isinf(rounded), np.uint8(NANS[kind]), bits)
    bits = np.where(np.signbit(rounded), bits | np.uint8(half), bits)
    # Grids without NaN turn it into their largest value.
    nan = NANS.get(kind, half - 1)
    return np.where(np.isnan(values), np.uint8(nan), bits)


def encode_ue8m0(values: Array, mode: str) -> Array:
    """Positive float64 to the power-of-two scale format, rounded to zero or up, saturating."""
    mantissa, exponent = np.frexp(np.abs(values))
    power = exponent - 1 + ((mantissa > 0.5) if mode == "rp" else 0)
    bits = np.clip(power + 127, 0, 254).astype(np.uint8)
    bits = np.where(values == 0, np.uint8(0), bits)
    bits = np.where(np.isinf(values), np.uint8(254), bits)
    return np.where(np.isnan(values), np.uint8(255), bits)
