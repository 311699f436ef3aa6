"""Owns cvt of pairs of small floats: e4m3, e5m2, e3m2, e2m3, e2m1, and the scales ue8m0.

It must not know memory or lanes' order. Contract: the PTX ISA's cvt. A pair of e2m1 shares a byte;
the others have a byte each, 6-bit ones below two zeros.
"""

import numpy as np

from ptx.emulator.decode import Build, Step
from ptx.emulator.formats import (
    TYPES,
    encode_small,
    encode_ue8m0,
    narrow,
    small_values,
    widen,
)
from ptx.emulator.lanes import Sel
from ptx.emulator.registers import Get
from ptx.numerics import Array

PACKED_SMALL = {
    "e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m1x2": "e2m1", "e2m3x2": "e2m3", "e3m2x2": "e3m2",
    "ue8m0x2": "ue8m0",
}
# What each is made of.
SOURCES = {
    "e4m3": ("f32", "f16x2"), "e5m2": ("f32", "f16x2"), "e2m1": ("f32", "f16x2"), "e2m3": ("f32",),
    "e3m2": ("f32",), "ue8m0": ("f32", "bf16x2"),
}
U8, U16 = TYPES["u8"], TYPES["u16"]


def build_small(build: Build, target: str, source: str) -> Step:
    """A cvt between a pair of small floats and f16x2, bf16x2 or two f32."""
    mode, scales = build.take("rn", "rz", "rp"), "ue8m0x2" in (target, source)
    relu, satfinite = None if scales else build.take("relu"), build.take("satfinite")
    if mode is None or mode not in (("rz", "rp") if target == "ue8m0x2" else ("rn",)):
        raise build.refuse(f"rounding {mode or 'none'} of {target}")
    if target in PACKED_SMALL:
        if not satfinite and not scales:
            raise build.refuse("needs .satfinite")
        return _encode_pair(build, PACKED_SMALL[target], source, mode, bool(relu))
    kind = PACKED_SMALL[source]
    if satfinite:
        raise build.refuse(f"nothing of {source} overflows")
    build.done(2)
    if target not in ("f16x2", "bf16x2") or (target == "bf16x2") != (kind == "ue8m0"):
        raise build.refuse(f"{source} to {target} is outside what the emulator runs")
    put, type_ = build.write(build.operand(0), TYPES[target]), TYPES[target]
    word = U8 if kind == "e2m1" else U16
    get, values = build.read(build.operand(1), word, relaxed=True), small_values(kind)

    def run(sel: Sel) -> None:
        bits = np.asarray(get(sel))
        shift, mask = (4, 15) if kind == "e2m1" else (8, len(values) - 1)
        pair = np.stack([values[bits & mask], values[(bits >> shift) & mask]], axis=-1)
        if relu:
            pair = np.where(pair > 0, pair, np.where(np.isnan(pair), pair, 0.0))
        put(sel, narrow(pair, type_.kind))

    return Step(run)


def _encode_pair(
    build: Build, kind: str, source: str, mode: str, relu: bool
) -> Step:
    if source not in SOURCES[kind]:
        raise build.refuse(f"{source} to {kind}x2 is outside what the emulator runs")
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
    else:
        build.done(2)
        get = build.read(build.operand(1), TYPES[source])

        def pair(sel: Sel) -> Array:
            return widen(np.asarray(get(sel)), TYPES[source].kind)

    def run(sel: Sel) -> None:
        values = pair(sel)
        if relu:
            values = np.where(values > 0, values, np.where(np.isnan(values), values, 0.0))
        scales = kind == "ue8m0"
        bits = encode_ue8m0(values, mode) if scales else encode_small(values, kind, mode)
        packed = bits[..., 0].astype(np.uint16) | (bits[..., 1].astype(np.uint16) << shift)
        put(sel, packed.astype(word.dtype))

    return Step(run)
