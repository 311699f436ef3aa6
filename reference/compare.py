"""Owns how near two results must be, by name, and the report on the first place where they are not.

    python -m reference.compare A B [--tolerance NAME] [--partial] [--svg FILE]

A is the reference, B is judged; both are dumps (`reference.dump`). Exit code 0: within tolerance,
1: divergence, 2: not comparable. Widening a tolerance is a decision, recorded with its reason.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.dump import STATE_PARTS, TAPS, Dump, read_dump
from reference.errors import OracleError
from reference.heatmap import draw

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tolerance:
    """Three bounds that must all hold, so that neither cancellation nor one bad cell can hide.

    norm  |got - want|_2 <= norm * |want|_2 over the whole array
    row   the same for each row (token, head) of arrays with two axes or more; a row smaller than
          the array's typical row is measured against the typical one
    cell  max |got - want| <= cell * max |want|
    """

    norm: float
    row: float
    cell: float
    why: str


TOLERANCES = {
    "exact": Tolerance(0.0, 0.0, 0.0, "moves and choices: nothing is computed, nothing may differ"),
    "f64_path": Tolerance(
        1e-11, 1e-10, 1e-10, "the whole model in float64 by another order of sums"
    ),
    "f32_elementwise": Tolerance(2e-7, 4e-7, 5e-7, "a handful of float32 roundings for each cell"),
    "f32_reduction": Tolerance(
        2e-6, 5e-6, 5e-6, "one float32 sum in free order; grows like the root of its length"
    ),
    "f32_layer": Tolerance(
        1e-5, 8e-5, 4e-5, "one float32 layer fed with the reference's own input; about 3x measured"
    ),
    "f32_path": Tolerance(
        2e-4, 2e-3, 6e-4,
        "a whole float32 model of 8 layers; the GDN gated norm divides by small heads (row bound)",
    ),
    "bf16_elementwise": Tolerance(
        2.0**-8, 2.0**-8, 2.0**-8, "one BF16 rounding (half a step is 2^-9) and its neighbour"
    ),
    "bf16_reduction": Tolerance(
        2e-3, 1e-2, 2.0**-7,
        "equal BF16 inputs, one rounding at the end: few cells flip, each by one step of its own",
    ),
    "bf16_layer": Tolerance(
        2e-2, 4e-2, 4e-2,
        "one BF16 layer, equal rounding points, fed with the reference's own input; 3x measured",
    ),
    "bf16_path": Tolerance(
        1e-1, 4e-1, 2e-1,
        "8 layers in BF16, equal rounding points, heads of 128 and more; two valid orders of sums "
        "differ by 4e-2 there, and by 3e-1 with the 16-wide heads of the tiny model: inject there",
    ),
}


@dataclass(frozen=True)
class Difference:
    """How one tensor differs: relative errors, and the worst cell with both values."""

    name: str
    norm: float
    row: float
    cell: float
    index: tuple[int, ...]
    want: float
    got: float
    passed: bool
    note: str = ""

    def __str__(self) -> str:
        """One line: name, place, both values, the three errors."""
        if self.note:
            return f"{self.name}: {self.note}"
        return (
            f"{self.name} at {list(self.index)}: want {self.want:.9g}, got {self.got:.9g}; "
            f"norm {self.norm:.3g}, worst row {self.row:.3g}, worst cell {self.cell:.3g}"
        )


def difference(name: str, want: Array, got: Array, tolerance: Tolerance) -> Difference:
    """Compare one tensor; -inf in both (a hidden score) is equal, other NaN or Inf always fail."""
    if want.shape != got.shape:
        return _failed(name, f"shape {got.shape}, want {want.shape}")
    if not want.size:
        return Difference(name, 0.0, 0.0, 0.0, (), 0.0, 0.0, True)
    want, got = want.astype(np.float64), got.astype(np.float64)
    hidden = (want == -np.inf) & (got == -np.inf) & name.endswith("scores")
    want, got = np.where(hidden, 0.0, want), np.where(hidden, 0.0, got)
    wrong = ~(np.isfinite(want) & np.isfinite(got))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        return _failed(
            name, f"not finite at {list(where)}: want {want[where]}, got {got[where]}; "
            f"{int(wrong.sum())} cells"
        )
    error = np.abs(got - want)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), error.shape))
    norm = _ratio(np.linalg.norm(error), np.linalg.norm(want))
    cell = _ratio(error.max(), np.abs(want).max())
    row = _worst_row(want, error)
    passed = norm <= tolerance.norm and row <= tolerance.row and cell <= tolerance.cell
    return Difference(name, norm, row, cell, index, float(want[index]), float(got[index]), passed)


def mismatch(got: Array, want: Array, tolerance: str, name: str = "array") -> str | None:
    """None when `got` is `want` within the named tolerance, else one line with the worst cell."""
    found = difference(name, want, got, _named(tolerance))
    return None if found.passed else f"{tolerance}: {found}"


def compare(a: Dump, b: Dump, tolerance: str, partial: bool = False) -> list[Difference]:
    """All tensors of reference `a` in order of computation, judged in `b`.

    A tensor missing in `b` fails unless `partial`; one that only `b` has always fails. OracleError
    when ids or positions differ or nothing is common.
    """
    if not np.array_equal(a.ids, b.ids) or not np.array_equal(a.positions, b.positions):
        raise OracleError("the dumps are of different ids or positions")
    if not set(a.tensors) & set(b.tensors):
        raise OracleError("the dumps have no tensor in common")
    bounds = _named(tolerance)
    found = []
    for name in sorted({*a.tensors, *b.tensors}, key=_order):
        if name in a.tensors and name in b.tensors:
            found.append(difference(name, a.tensors[name], b.tensors[name], bounds))
        elif not partial or name in b.tensors:
            found.append(_failed(name, f"only in {'A' if name in a.tensors else 'B'}"))
    return found


def table(found: list[Difference]) -> Iterator[str]:
    """Lines of a table: for each part of the model its worst tensor and errors."""
    yield f"{'part':<10} {'tensors':>7} {'norm':>9} {'row':>9} {'cell':>9}  worst tensor"
    parts: dict[str, list[Difference]] = {}
    for item in found:
        parts.setdefault(item.name.rpartition(".")[0], []).append(item)
    for part, items in parts.items():
        worst = max(items, key=lambda item: (not item.passed, item.norm))
        yield (
            f"{part:<10} {len(items):>7} {worst.norm:>9.2e} {worst.row:>9.2e} {worst.cell:>9.2e}  "
            f"{worst.name.rpartition('.')[2]}{'' if worst.passed else '  DIVERGES'}"
        )


def _named(tolerance: str) -> Tolerance:
    if tolerance not in TOLERANCES:
        raise OracleError(f"tolerance {tolerance!r} is not one of {', '.join(TOLERANCES)}")
    return TOLERANCES[tolerance]


def _failed(name: str, note: str) -> Difference:
    inf = float("inf")
    return Difference(name, inf, inf, inf, (), float("nan"), float("nan"), False, note)


def _ratio(error: Any, scale: Any) -> float:
    return float(error / scale) if scale else (0.0 if not error else float("inf"))


def _worst_row(want: Array, error: Array) -> float:
    if want.ndim < 2:
        return 0.0
    rows = int(np.prod(want.shape[:-1]))
    scale = np.linalg.norm(want.reshape(rows, -1), axis=1)
    typical = np.sqrt(np.mean(scale**2))
    errors = np.linalg.norm(error.reshape(rows, -1), axis=1)
    scale = np.maximum(scale, typical)
    return max(_ratio(e, s) for e, s in zip(errors, scale, strict=True))


def _order(name: str) -> tuple[int, int, int, str]:
    """Embedding, layers, end of the model, states, MTP; within each by order of computation."""
    scope, _, tap = name.rpartition(".")
    kind, _, index = scope.partition(".")
    group = {"layer": 1, "state": 3, "mtp": 4}.get(kind, 0 if tap == "embed" else 2)
    return group, int(index or 0), _tap_order(name), name


def _tap_order(name: str) -> int:
    tap = name.rpartition(".")[2]
    names = STATE_PARTS if name.startswith("state.") else tuple(TAPS)
    return names.index(tap) + (len(TAPS) if name.startswith("state.") else 0)


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Name the first place where two dumps differ.")
    parser.add_argument("a", help="the reference dump")
    parser.add_argument("b", help="the dump to judge")
    parser.add_argument("--tolerance", choices=list(TOLERANCES), default="f32_path")
    parser.add_argument("--partial", action="store_true", help="B may lack tensors")
    parser.add_argument("--svg", type=Path, help="draw errors by layer and tensor")
    given = parser.parse_args(arguments)
    try:
        found = compare(read_dump(given.a), read_dump(given.b), given.tolerance, given.partial)
        if given.svg:
            by_tap = sorted(found, key=lambda item: _tap_order(item.name))
            cells = {item.name: (item.norm, item.passed, str(item)) for item in by_tap}
            given.svg.write_text(draw(cells, given.tolerance), encoding="utf-8")
    except (OracleError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    bounds = TOLERANCES[given.tolerance]
    limits = f"norm {bounds.norm:.3g}, row {bounds.row:.3g}, cell {bounds.cell:.3g}"
    bad = [item for item in found if not item.passed]
    if not bad:
        print(f"all {len(found)} tensors within {given.tolerance} ({limits})")
        return 0
    print(f"{len(bad)} of {len(found)} tensors past {given.tolerance} ({limits})")
    print(f"first: {bad[0]}")
    return 1


if __name__ == "__main__":
    sys.exit(_main())
