"""Owns what one pass over rows is told, and the refusal of a pass that met device trouble.

Every program takes the same chunks; which buffers and kernels they become is the program's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from ptx.op import PtxError

P = ParamSpec("P")
R = TypeVar("R")
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


def refuses(method: Callable[P, R]) -> Callable[P, R]:
    """Device trouble, a lost device included, is a refusal of the call that met it."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except PtxError as error:
            raise RuntimeFailure(f"device: {error}") from None

    return call


class Chunk(NamedTuple):
    """One pass: per-row ids, positions, cache rows and sequence, the sequences' cell tables, and
    which rows want logits.

    `tables`, `starts`, `state_in` and `state_out` are of the sequences that have rows here, with
    the slots of their recurrent state; `seq_of_token` counts the same. An array that comes with
    several chunks is the same in all: it may be recognised. `hidden` [n_rows, D] on a stage that
    takes such rows.
    """

    ids: I32
    positions: I32
    slots: I32
    seq_of_token: I32
    tables: Sequence[I32]
    starts: I32
    state_in: I32
    state_out: I32
    rows: npt.NDArray[np.intp]
    hidden: F32 | None
