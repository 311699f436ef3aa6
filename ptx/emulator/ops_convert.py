"""Owns cvt: integers, floats, packed halves, and the 8-bit and 4-bit float formats.

It must not know memory or lanes' order. Contract: the PTX ISA's cvt.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import (
    TYPES,
    Type,
    encode_small,
    encode_ue8m0,
    narrow,
    quantise,
    small_values,
    widen,
)
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_float import FLOATS, flush, saturate
from ptx.emulator.ops_integer import simple
from ptx.emulator.registers import Get
from ptx.numerics import Array

INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}
PACKED_SMALL = {"e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m1x2": "e2m1", "ue8m0x2": "ue8m0"}
U8, U16 = TYPES["u8"], TYPES["u16"]


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
    ftz, sat = build.take("ftz"), build.take("sat")
    satfinite, relu = build.take("satfinite"), build.take("relu")
    from_float, to_float = source.kind in FLOATS, target.kind in FLOATS or target.name == "tf32"

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
    words = [build.mods.pop(), build.mods.pop()] if len(build.mods) > 1 else []
    if set(words) & set(PACKED_SMALL):
        return _cvt_small(build, words[1], words[0])
    if len(words) < 2 or not set(words) <= set(TYPES):
        raise build.refuse("needs two types known here")
    source, target = TYPES[words[0]], TYPES[words[1]]
    if target.n_packed == 2:
        return _cvt_pack(build, target, source)
    if build.take("pack") or source.n_packed == 2:
        raise build.refuse("packed sources are outside what the emulator runs")
    f = converter(build, target, source)
    build.done(2)
    put = build.write(build.operand(0), target, relaxed=True)
    get = build.read(build.operand(1), source, relaxed=True)
    return Step(simple(put, lambda x: f(np.asarray(x)), get))


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


def _cvt_small(build: Build, target: str, source: str) -> Step:
    """Pairs of 8-bit and 4-bit floats, to and from f16x2 or f32."""
    mode, relu = build.take("rn", "rz", "rp") or "rn", build.take("relu")
    satfinite = bool(build.take("satfinite"))
    if target in PACKED_SMALL:
        return _encode_pair(build, PACKED_SMALL[target], source, mode, bool(relu), satfinite)
    kind = PACKED_SMALL[source]
    build.done(2)
    if target not in ("f16x2", "bf16x2") or (target == "bf16x2") != (kind == "ue8m0"):
        raise build.refuse(f"{source} to {target} is outside what the emulator runs")
    put, type_ = build.write(build.operand(0), TYPES[target]), TYPES[target]
    word = U8 if kind == "e2m1" else U16
    get, values = build.read(build.operand(1), word, relaxed=True), small_values(kind)

    def run(sel: Sel) -> None:
        bits = np.asarray(get(sel))
        shift, mask = (4, 15) if kind == "e2m1" else (8, 255)
        pair = np.stack([values[bits & mask], values[(bits >> shift) & mask]], axis=-1)
        if relu:
            pair = np.where(pair > 0, pair, np.where(np.isnan(pair), pair, 0.0))
        put(sel, narrow(pair, type_.kind))

    return Step(run)


def _encode_pair(
    build: Build, kind: str, source: str, mode: str, relu: bool, satfinite: bool
) -> Step:
    word, shift = (U8, 4) if kind == "e2m1" else (U16, 8)
    put = build.write(build.operand(0), word, relaxed=True)
    pair: Get
    if source == "f32":
        build.done(3)
        high, low = (build.read(build.operand(at), TYPES["f32"]) for at in (1, 2))

        def pair(sel: Sel) -> Array:
            n = len(build.lanes.numbers[sel])
            both = [np.broadcast_to(np.asarray(g(sel), np.float64), n) for g in (low, high)]
            return np.stack(both, axis=1)
    elif source in ("f16x2", "bf16x2"):
        build.done(2)
        get = build.read(build.operand(1), TYPES[source])

        def pair(sel: Sel) -> Array:
            return widen(np.asarray(get(sel)), TYPES[source].kind)
    else:
        raise build.refuse(f"{source} to {kind}x2 is outside what the emulator runs")

    def run(sel: Sel) -> None:
        values = pair(sel)
        if relu:
            values = np.where(values > 0, values, np.where(np.isnan(values), values, 0.0))
        if kind == "ue8m0":
            bits = encode_ue8m0(values, mode)
        else:
            bits = encode_small(values, kind, mode, satfinite)
        packed = bits[..., 0].astype(np.uint16) | (bits[..., 1].astype(np.uint16) << shift)
        put(sel, packed.astype(word.dtype))

    return Step(run)
