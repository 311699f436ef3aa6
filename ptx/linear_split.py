"""Owns how the references of the split linear ops give each output its rows of the weight.

It must not know which ops exist, nor a format of weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptx.numerics import Array


def write_split(
    linear: Callable[..., Any], x: Array, weight: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """Each output [T, its rows] = x times its rows of the weight, by the reference `linear`.

    `weight` holds the arrays that `linear` takes, rows outermost; the outputs' rows lie in them
    one output after another. Each output is a product of its own, because among other rows a row
    may have other bits: KNOWLEDGE/findings/host-bits-depend-on-the-rows-of-the-weight.md.
    """
    borders = np.cumsum([y.shape[1] for y in outputs])[:-1]
    parts = zip(*(np.split(cells, borders) for cells in weight), strict=True)
    for part, y in zip(parts, outputs, strict=True):
        linear(x, *part, y)
