"""Owns what the tests of the linear ops share: shapes past every edge, inputs for each format, and
that an op with several products has the bits of the ops it stands for.

It must not know how an op computes.
"""

import math
from typing import Any, Protocol

import numpy as np

from ptx.numerics import GROUP, Array, round_to_bf16
from ptx.op import Op
from ptx.swiglu.op import OP as SWIGLU

# T, N, K: one and one past a warp, a block's eight outputs, and a group of 128.
PLAIN = [(1, 1, 1), (3, 1, 65), (2, 9, 1), (5, 17, 63), (1, 8, 129)]
GROUPED = [(1, 1, 128), (3, 9, 128), (2, 17, 256), (1, 8, 640)]
SHAPES = {"f32": PLAIN, "bf16": PLAIN, "int8": GROUPED, "int4": GROUPED}
# Rows of each output of a split: one row each, then no two alike, so that another's stride shows;
# borders inside a block's eight, between two blocks, and several in one.
WIDTHS: dict[int, list[tuple[int, ...]]] = {
    3: [(1, 1, 1), (7, 2, 9), (3, 1, 17), (8, 16, 5)],
    4: [(1, 1, 1, 1), (7, 2, 9, 3), (10, 6, 1, 2), (8, 16, 5, 1)],
}
# Root of the mean square of each format's weights below, to a factor of two.
TYPICAL = {"f32": 1, "bf16": 1, "int8": 40, "int4": 2}


class Bench(Protocol):
    """The part of the fixture `bench` that is used here."""

    def run(self, op: Op, n_guard: int = 1, **args: Any) -> dict[str, Array]:
        """Launch `op` and return what it wrote."""

    def check(self, op: Op, **args: Any) -> None:
        """Compare a launch with the reference in float64."""


def _rows(n_tokens: int, n_out: int, n_in: int) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(n_tokens + n_out)
    return rng, rng.standard_normal((n_tokens, n_in))


def f32_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K] and w [N, K]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    return {"x": x, "w": rng.standard_normal((n_out, n_in))}


def bf16_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K] and w [N, K] as bf16 bits."""
    rng, x = _rows(n_tokens, n_out, n_in)
    return {"x": x, "w": round_to_bf16(rng.standard_normal((n_out, n_in)))}


def int8_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K], codes [N, K] with both ends among them, scales [N, K / 128]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    codes = rng.integers(-127, 128, (n_out, n_in), np.int8)
    codes[0, :2] = -127, 127
    return {"x": x, "codes": codes, "scales": _scales(rng, n_out, n_in)}


def int4_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K], codes [N, K / 2] without the nibble 8, scales [N, K / 128]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    low, high = rng.integers(-7, 8, (2, n_out, n_in // 2)) & 15
    codes = (low | high << 4).astype(np.uint8)
    return {"x": x, "codes": codes, "scales": _scales(rng, n_out, n_in)}


def _scales(rng: np.random.Generator, n_out: int, n_in: int) -> Array:
    """Any positive bf16 up to 2 for most, so that a group read with its neighbour's is far off."""
    return round_to_bf16(2.0 ** rng.uniform(-8, 1, (n_out, n_in // GROUP)))


INPUTS = {"f32": f32_inputs, "bf16": bf16_inputs, "int8": int8_inputs, "int4": int4_inputs}


def swiglu_inputs(weight: str, n_tokens: int, n_pairs: int, n_in: int) -> dict[str, Any]:
    """The inputs of a format with 2 F rows, and y [T, F]; gates are small, where silu bends."""
    inputs = INPUTS[weight](n_tokens, 2 * n_pairs, n_in)
    inputs["x"] *= 3 / (TYPICAL[weight] * math.sqrt(n_in))
    return {**inputs, "y": np.full((n_tokens, n_pairs), np.nan)}


def split_inputs(weight: str, n_tokens: int, widths: tuple[int, ...], n_in: int) -> dict[str, Any]:
    """The inputs of a format with the rows of all outputs, and y0 [T, A], y1 [T, B] and so on."""
    outputs = {f"y{i}": np.full((n_tokens, width), np.nan) for i, width in enumerate(widths)}
    return {**INPUTS[weight](n_tokens, sum(widths), n_in), **outputs}


def split_shapes(weight: str, n_outputs: int) -> list[tuple[int, tuple[int, ...], int]]:
    """T, the outputs' widths, K."""
    sizes = [(n_tokens, n_in) for n_tokens, _, n_in in SHAPES[weight]]
    return [(t, widths, k) for (t, k), widths in zip(sizes, WIDTHS[n_outputs], strict=False)]


def check_swiglu(bench: Bench, op: Op, linear: Op, inputs: dict[str, Any]) -> None:
    """`op` is right, with the bits of `linear` on gate's and on up's rows, then of swiglu."""
    bench.check(op, **inputs)
    n_pairs = inputs["y"].shape[1]
    gate = _product(bench, linear, inputs, 0, n_pairs)
    up = _product(bench, linear, inputs, n_pairs, 2 * n_pairs)
    want = bench.run(SWIGLU, gate=gate, up=up)["y"]
    assert bench.run(op, **inputs)["y"].tobytes() == want.tobytes()


def check_split(bench: Bench, op: Op, linear: Op, inputs: dict[str, Any]) -> None:
    """`op` is right, and each output has the bits of `linear` on its own rows."""
    bench.check(op, **inputs)
    first = 0
    for name, y in bench.run(op, **inputs).items():
        end = first + y.shape[1]
        assert y.tobytes() == _product(bench, linear, inputs, first, end).tobytes(), name
        first = end


def _product(bench: Bench, linear: Op, inputs: dict[str, Any], first: int, end: int) -> Array:
    """x times the weight's rows first .. end - 1, by the op `linear`."""
    rows = {n: inputs[n][first:end] for n in ("w", "codes", "scales") if n in inputs}
    return bench.run(linear, x=inputs["x"], **rows)["y"]
