"""Owns the records by which T3 says how a model runs on a device with kernels.

Values only. A plan that has a `CompiledSchedule` beside its `Schedule` computes the same numbers on
such a device from weights in other layouts: the residual stream float32, what goes into a linear
bf16, what comes out of one float32, KV pages bf16, recurrent state float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy.typing as npt

from ptx.op import Op

# How a matrix lies in device memory: plain rows, or tiles of 8 rows by 128 (`ptx/weight_tiles.py`).
Form = Literal["f32", "bf16", "int4_tiles", "int8_tiles"]


# Dtype and shape of a buffer.
Cells = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Matrix:
    """The rows of one or more weights, one behind the other, in one form."""

    parts: tuple[str, ...]
    form: Form


@dataclass(frozen=True)
class Rows:
    """Rows start to stop of a buffer, as an argument of a step."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class CompiledStep:
    """One op call: `args` maps the op's parameters to buffers, rows of one, or constants."""

    op: Op
    args: Mapping[str, str | Rows | int | float | bool]


@dataclass(frozen=True)
class Scratch:
    """A buffer with `columns` for each row of a pass; one of `few` has rows for small passes only.
    What is `zeroed` holds zeros once, and whoever uses it leaves it so."""

    dtype: str
    columns: tuple[int, ...]
    few: bool = False
    zeroed: bool = False


@dataclass(frozen=True)
class CompiledSchedule:
    """A package's op calls on a device with kernels.

    A pass of up to `few_rows` rows runs `few`, any other `many`, both from "h" to "h"; `head` runs
    over up to `few_rows` rows that want logits, which `rows` picks from "h", into "logits" (which
    stands for "logits.0" and "logits.1" by turns), with the best ids and the signal of each in
    "best" and "signal", as `token_signal_wide` has them. Beside `buffers` and `matrices` steps may
    name `fixed` ones (zero at first), those of `in_turns`, which are of one dtype and lie at one
    place, so that writing one ends what another held, the layers' "k_pages.<layer>" and
    "v_pages.<layer>", the plan's states, constants, and what a pass brings: ids, positions, slots,
    seq_of_token, rows, pages, starts, first, state_in, state_out.
    """

    matrices: Mapping[str, Matrix]
    embed: tuple[CompiledStep, ...]
    few: tuple[tuple[CompiledStep, ...], ...]
    many: tuple[tuple[CompiledStep, ...], ...]
    head: tuple[CompiledStep, ...]
    buffers: Mapping[str, Scratch]
    fixed: Mapping[str, Cells]
    in_turns: Mapping[str, Cells]
    constants: Mapping[str, npt.NDArray]  # type: ignore[type-arg]
    few_rows: int
    many_rows: int
