"""Owns which forms of mma.sync there are: kinds, types, depths, accumulators, block scales.

It must not know how any is computed. Contract: the syntax of the PTX ISA's mma, of its m16n8kK
shapes without f64 and single bits.
"""

from typing import NamedTuple


class Form(NamedTuple):
    """Types that A and B may have in any mixture, depths of K, and types of C and D."""

    types: frozenset[str]
    depths: tuple[int, ...]
    accumulators: tuple[str, ...]


def _form(types: str, depths: tuple[int, ...], accumulators: str) -> Form:
    return Form(frozenset(types.split()), depths, tuple(accumulators.split()))


SMALL = "e4m3 e5m2 e3m2 e2m3 e2m1"
FORMS: dict[str | None, tuple[Form, ...]] = {
    None: (
        _form("f16", (8, 16), "f32 f16"), _form("bf16", (8, 16), "f32"),
        _form("tf32", (4, 8), "f32"), _form("s8 u8", (16, 32), "s32"),
        _form("s4 u4", (32, 64), "s32"), _form("e4m3 e5m2", (16, 32), "f32 f16"),
    ),
    "kind::f8f6f4": (_form(SMALL, (32,), "f32 f16"),),
    "kind::mxf8f6f4": (_form(SMALL, (32,), "f32"),),
    "kind::mxf4": (_form("e2m1", (64,), "f32"),),
    "kind::mxf4nvf4": (_form("e2m1", (64,), "f32"),),
}
# Each element has a byte of its own: e2m1 in bits 2 to 5, 6-bit types in bits 0 to 5.
PADDED = ("kind::f8f6f4", "kind::mxf8f6f4")
# Types of scales and how many there are along K; the first is meant when nothing is said.
SCALES: dict[str, tuple[tuple[str, str], ...]] = {
    "kind::mxf8f6f4": (("ue8m0", "scale_vec::1X"),),
    "kind::mxf4": (("ue8m0", "scale_vec::2X"),),
    "kind::mxf4nvf4": (("ue4m3", "scale_vec::4X"), ("ue8m0", "scale_vec::2X")),
}


def vector_of(kind: str | None) -> str | None:
    """The scale_vec that a kind means when none is written; None where it must be."""
    known = SCALES.get(kind or "", ())
    return known[0][1] if len(known) == 1 else None


def fault_of(
    kind: str | None, depth: int, types: tuple[str, str, str, str],
    scales: tuple[str, str | None] | None, satfinite: bool,
) -> str | None:
    """Why there is no such form, or None; `types` are those of D, A, B and C."""
    d, a, b, c = types
    if (scales is not None) != (kind in SCALES):
        return f"{kind} needs .block_scale" if kind in SCALES else f"{kind or 'it'} has no scales"
    if scales is not None and scales not in SCALES[kind or ""]:
        return f"{kind} has no scales {scales[0] or 'without a type'} {scales[1] or ''}".rstrip()
    for form in FORMS[kind]:
        if {a, b} <= form.types:
            break
    else:
        return f"{a} by {b}{f' of {kind}' if kind else ''} is outside what the emulator runs"
    if depth not in form.depths:
        return f"{a} by {b} with k{depth} is outside what the emulator runs"
    if c != d or d not in form.accumulators:
        return f"{a} by {b} accumulates no {c} into {d}"
    if satfinite and d != "s32":
        return ".satfinite is for integers"
    return None
