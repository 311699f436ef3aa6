"""Owns cvt: integers, floats, packed halves, packed small integers.

It must not know memory or lanes' order. Contract: the PTX ISA's cvt.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.convert_small import PACKED_SMALL, build_small
from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import (
    TYPES,
    Type,
    narrow,
    quantise,
    widen,
)
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_float import FLOATS, flush, saturate
from ptx.emulator.ops_integer import simple
from ptx.numerics import Array

INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}
WIDTHS = {"f64": 64, "f32": 32, "tf32": 19, "f16": 16, "bf16": 16}


def _saturated(values: Array, target: Type) -> Array:
    """Float64 integers to an integer type, clipped, NaN as zero."""
    bounds = np.iinfo(target.dtype)
    clean = np.where(np.isnan(values), 0.0, values)
    inside = np.clip(clean, float(bounds.min), float(bounds.max))
    # The largest 64-bit integers are no float64: the nearest one below stands in, then is fixed.
    top = inside >= float(bounds.max)
    result = np.where(top & (target.n_bits == 64), 0.0, inside).astype(target.dtype)
    return np.where(top, target.dtype.type(bounds.max), result)


def converter(build: Build, target: Type, source: Type) -> Callable[[Array], Array]:
    """The function of a cvt between two plain types."""
    mode, integral = build.take("rn", "rz", "rm", "rp", "rna"), build.take(*INTEGRAL)
    from_float, to_float = source.kind in FLOATS, target.kind in FLOATS or target.name == "tf32"
    _check_mode(build, target, source, mode, integral)
    ftz = build.take("ftz") if "f32" in (source.kind, target.kind) else None
    sat = build.take("sat") if target.kind != "bf16" and target.name != "tf32" else None
    satfinite = relu = None
    if source.kind == "f32" and target.name in ("f16", "bf16", "tf32"):
        satfinite, relu = build.take("satfinite"), build.take("relu")

    def load(x: Array) -> Array:
        if ftz and source.kind == "f32":
            x = flush(x)
        return widen(x, source.kind)

    def store(values: Array) -> Array:
        if relu:
            values = np.where(values > 0, values, np.where(np.isnan(values), values, 0.0))
        if sat:
            values = saturate(values)
        if satfinite:
            values = _finite(values, target)
        if target.name == "tf32":
            return quantise(values, "tf32", mode or "rna").astype(np.float32).view(np.uint32)
        result = narrow(values, target.kind, mode or "rn")
        return flush(result) if ftz and target.kind == "f32" else result

    if from_float and to_float:
        if integral:
            return lambda x: store(INTEGRAL[integral](load(x)))
        if (source.kind, target.name) == ("bf16", "f32") and not (ftz or sat):
            # A bf16 is the upper half of a float32: a card moves the bits, those of a NaN too.
            return lambda x: (np.asarray(x).astype(np.uint32) << 16).view(np.float32)
        return lambda x: store(load(x))
    if from_float:
        rounding = INTEGRAL[integral or "rzi"]
        return lambda x: _saturated(rounding(load(x)), target)
    if to_float:
        return _from_integer(build, target, source, mode or "rn", store)
    if sat:
        bounds = np.iinfo(target.dtype)
        low = max(bounds.min, np.iinfo(source.dtype).min)
        high = min(bounds.max, np.iinfo(source.dtype).max)
        return lambda x: np.clip(x, source.dtype.type(low), source.dtype.type(high)).astype(
            target.dtype
        )
    return lambda x: np.asarray(x).astype(target.dtype)


def _check_mode(
    build: Build, target: Type, source: Type, mode: str | None, integral: str | None
) -> None:
    """Refuse a rounding that the ISA asks for and the text lacks, or has where it may not."""
    from_float, to_float = source.kind in FLOATS, target.kind in FLOATS or target.name == "tf32"
    if from_float and to_float:
        narrows = WIDTHS[target.name] < WIDTHS[source.kind]
        crosses = target.kind != source.kind and WIDTHS[target.name] == WIDTHS[source.kind]
        # The assembler takes a needless mode of bf16 alone.
        right = mode is not None if narrows or crosses else mode is None or source.kind == "bf16"
        right = right if integral is None else mode is None and target.kind == source.kind
    elif from_float:
        right = integral is not None and mode is None
    else:
        right = integral is None and (mode is not None) == to_float
    if mode == "rna" and target.name != "tf32":
        right = False
    if not right:
        raise build.refuse(
            f"{source.name} to {target.name} with rounding {mode or integral or 'none'}"
        )


def _from_integer(
    build: Build, target: Type, source: Type, mode: str, store: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    if source.n_bits == 64 and target.kind != "f64":
        if mode != "rn" or target.kind != "f32":
            raise build.refuse("64-bit integers convert to f32 and f64 with .rn only")
        return lambda x: np.asarray(x).astype(np.float32)
    if target.kind == "f64" and mode != "rn" and source.n_bits == 64:
        raise build.refuse("64-bit integers convert to f64 with .rn only")
    return lambda x: store(np.asarray(x).astype(np.float64))


def _finite(values: Array, target: Type) -> Array:
    limits = {"f16": 65504.0, "bf16": 255.0 * 2.0**120, "b": 2047.0 * 2.0**117}
    limit = limits.get(target.kind, float(np.finfo(np.float32).max))
    return np.clip(values, -limit, limit)


@opcode("cvt")
def _cvt(build: Build) -> Step:
    if build.take("pack"):
        return _pack_integers(build)
    words = [build.mods.pop(), build.mods.pop()] if len(build.mods) > 1 else []
    if set(words) & set(PACKED_SMALL):
        return build_small(build, words[1], words[0])
    if len(words) < 2 or not set(words) <= set(TYPES):
        raise build.refuse("needs two types known here")
    source, target = TYPES[words[0]], TYPES[words[1]]
    if target.n_packed == 2:
        return _cvt_pack(build, target, source)
    if source.n_packed == 2:
        raise build.refuse("packed sources are outside what the emulator runs")
    f = converter(build, target, source)
    build.done(2)
    put = build.write(build.operand(0), target, relaxed=True)
    get = build.read(build.operand(1), source, relaxed=True)
    return Step(simple(put, lambda x: f(np.asarray(x)), get))


def _pack_integers(build: Build) -> Step:
    """cvt.pack.sat: a above b, each clipped to a few bits; above them what a third operand has."""
    chained, wide = build.take("b32") is not None, build.take("s32")
    name = build.take("u16", "s16") if not chained else build.take("u8", "s8", "u4", "s4", "u2",
                                                                   "s2")
    if not (build.take("sat") and wide and name):
        raise build.refuse("is .sat to u16 or s16, or with .b32 to 8, 4 or 2 bits, from s32")
    build.done(4 if chained else 3)
    n_bits = int(name[1:])
    low, high = (-(1 << n_bits - 1), (1 << n_bits - 1) - 1) if name[0] == "s" else (
        0, (1 << n_bits) - 1)
    put = build.write(build.operand(0), TYPES["u32"])
    a, b = (build.read(build.operand(at), TYPES["s32"]) for at in (1, 2))
    above = build.read(build.operand(3), TYPES["u32"]) if chained else None
    mask = np.uint32((1 << n_bits) - 1)

    def run(sel: Sel) -> None:
        upper, lower = (np.clip(g(sel), low, high).astype(np.uint32) & mask for g in (a, b))
        result = upper << np.uint32(n_bits) | lower
        if above is not None:
            result = result | np.asarray(above(sel)) << np.uint32(2 * n_bits)
        put(sel, result)

    return Step(run)


def _cvt_pack(build: Build, target: Type, source: Type) -> Step:
    """Two f32 into one word: the first operand goes to the upper half."""
    half = TYPES[target.name.removesuffix("x2")]
    f = converter(build, half, source)
    build.done(3)
    if source.name != "f32" or target.kind not in ("f16", "bf16"):
        raise build.refuse(f"{source.name} to {target.name} is outside what the emulator runs")
    put = build.write(build.operand(0), target)
    high, low = (build.read(build.operand(at), source) for at in (1, 2))

    def run(sel: Sel) -> None:
        n = len(build.lanes.numbers[sel])
        pair = [np.broadcast_to(f(np.asarray(g(sel))), n) for g in (low, high)]
        put(sel, np.stack(pair, axis=1))

    return Step(run)
