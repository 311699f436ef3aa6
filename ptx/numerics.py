"""Owns T0's number formats by name, and how near two results must be to count as the same.

It must not know ops or devices. Widening a tolerance is a decision, recorded in KNOWLEDGE.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Words of contracts and of PTX -> numpy.
DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
}


@dataclass(frozen=True)
class Tolerance:
    """Two bounds that both must hold, so that neither cancellation nor one bad cell can hide.

    norm  |got - want|_2 <= norm * |want|_2, over the whole array
    cell  max |got - want| <= cell * max |want|
    """

    norm: float
    cell: float


TOLERANCES = {
    # Moves and choices: nothing is computed, so nothing may differ.
    "exact": Tolerance(0.0, 0.0),
    # A handful of float32 roundings for each cell.
    "f32_elementwise": Tolerance(2e-7, 5e-7),
    # Float32 sums in free order; the error grows like the root of the length.
    "f32_reduction": Tolerance(2e-6, 5e-6),
}


def mismatch(got: Array, want: Array, tolerance: str) -> str | None:
    """None when `got` is `want` within the named tolerance, else a report with one bad cell.

    NaN and infinity always fail, on either side.
    """
    if got.shape != want.shape:
        return f"shape {got.shape}, want {want.shape}"
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    bound = TOLERANCES[tolerance]
    bad = ~(difference <= bound.cell * np.max(np.abs(want)))
    norm = np.linalg.norm(difference)
    if not bad.any() and norm <= bound.norm * np.linalg.norm(want.astype(np.float64)):
        return None
    # The first cell past the cap, or the worst one when only the norm is past its bound.
    cell = np.unravel_index(int(np.argmax(np.where(bad, np.inf, difference))), got.shape)
    return (
        f"{tolerance}: {int(bad.sum())} of {got.size} cells past the cap, norm of the difference "
        f"{norm:.3e}; at {tuple(int(i) for i in cell)} got {got[cell]!r}, want {want[cell]!r}"
    )
