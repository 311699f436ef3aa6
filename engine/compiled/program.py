"""Owns a compiled schedule bound to a device's buffers, and runs it over chunks of rows.

It has the face of `engine.program.Program`, so sessions do not know which one they run on. How a
pass runs is in `passes.py`. It must not know sessions or positions beyond what a chunk says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arena import MemoryPlan
from engine.chunk import Chunk, refuses
from engine.compiled.drawing import n_bytes_of
from engine.compiled.inputs import Inputs
from engine.compiled.pages import BYTES_OF_CELL, Pages
from engine.compiled.passes import Passes
from engine.compiled.records import Cells, CompiledSchedule, CompiledStep, Scratch
from engine.compiled.staging import Staging
from engine.compiled.weights import load_matrices, matrix_bytes
from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from engine.logits import LogitsRow
from engine.records import ModelPlan
from engine.state_slots import StateSlots
from ptx.device import Buffer, Device
from ptx.numerics import DTYPES
from ptx.op import PtxError

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


def compiled_of(plan: ModelPlan) -> CompiledSchedule:
    """The plan's compiled schedule; RuntimeFailure when it has none."""
    if plan.compiled is None:
        raise RuntimeFailure(f"model {plan.model_id}: no schedule for a device with kernels")
    return plan.compiled


def plan_memory(plan: ModelPlan, n_pages: int, n_slots: int) -> MemoryPlan:
    """What a model needs with so many KV pages and recurrent state slots."""
    schedule = compiled_of(plan)
    weights = sum(matrix_bytes(matrix, plan.weights) for matrix in schedule.matrices.values())
    page_bytes = 2 * len(plan.kv.layers) * plan.kv.n_heads * plan.kv.d_head * PAGE_TOKENS
    slot_bytes = 4 * sum(prod(shape) for shape in plan.states.values())
    scratch = sum(
        _rows_of(schedule, buffer) * prod(buffer.columns) * DTYPES[buffer.dtype].itemsize
        for buffer in schedule.buffers.values()
    )
    fixed = sum(map(_bytes_of, schedule.fixed.values())) + _turns_bytes(schedule)
    drawing = n_bytes_of(plan.n_vocab, schedule.few_rows) if schedule.head else 0
    kv = n_pages * page_bytes * BYTES_OF_CELL
    return MemoryPlan(weights, kv, n_slots * slot_bytes, scratch + fixed + drawing)


class CompiledProgram(StateSlots):
    """A model's compiled schedule with its weights, KV pages, states and scratch on one device."""

    def __init__(
        self,
        device: Device,
        plan: ModelPlan,
        n_cells: int,
        n_slots: int,
        n_lanes: int,
        progress: Callable[[float], None],
    ) -> None:
        self._device = device
        schedule = compiled_of(plan)
        self.max_rows = schedule.many_rows
        self._gives_hidden = plan.gives_hidden
        n_pages = n_cells // PAGE_TOKENS
        try:
            self._pages = Pages(device, plan.kv, n_pages)
            self.states = {
                name: device.allocate((n_slots, *shape), "f32", name)
                for name, shape in plan.states.items()
            }
            staging = Staging(device)
            inputs = Inputs(device, staging, schedule.many_rows, n_lanes, n_pages)
            scratch = {
                name: self._new(buffer.dtype, (_rows_of(schedule, buffer), *buffer.columns), name,
                                zeroed=buffer.zeroed)
                for name, buffer in schedule.buffers.items()
            }
            fixed = {
                **{
                    name: self._new(dtype, shape, name, zeroed=True)
                    for name, (dtype, shape) in schedule.fixed.items()
                },
                **self._in_turns(schedule),
                **{name: self._constant(name, v) for name, v in schedule.constants.items()},
                **self.states,
                **self._pages.named(),
                **load_matrices(device, schedule.matrices, plan.weights, progress),
            }
            self._passes = Passes(
                device, schedule, fixed, scratch, inputs, staging, plan.n_vocab
            )
            self._passes.prepare()
        except PtxError as error:
            raise RuntimeFailure(f"context: {error}") from None

    def _new(
        self, dtype: str, shape: tuple[int, ...], name: str, *, zeroed: bool = False
    ) -> Buffer:
        buffer = self._device.allocate(shape, dtype, name)
        if zeroed:
            self._device.upload(buffer, np.zeros(shape, DTYPES[dtype]))
        return buffer

    def _in_turns(self, schedule: CompiledSchedule) -> dict[str, Any]:
        """Views of one place by name."""
        largest = max(schedule.in_turns.values(), key=_bytes_of, default=None)
        if largest is None:
            return {}
        place: Any = self._device.allocate((prod(largest[1]),), largest[0], "rows in turns")
        return {
            name: place[: prod(shape)].reshape(shape)
            for name, (_, shape) in schedule.in_turns.items()
        }

    def _constant(self, name: str, value: Any) -> Buffer:
        buffer = self._device.allocate(value.shape, "f64", name)
        self._device.upload(buffer, value)
        return buffer

    @refuses
    def run(
        self, chunk: Chunk, seen: Callable[[F32], None] | None = None
    ) -> tuple[Sequence[LogitsRow], F32 | None]:
        """Logits of the rows that want them, and the hidden rows of a stage that gives
        them; KV pages and recurrent state are written for all. `seen` gets the residual stream,
        [n_rows, D], after the embedding and after each layer, which then run without a graph."""
        found = self._passes.run(chunk, seen)
        return found, self._passes.hidden(len(chunk.ids)) if self._gives_hidden else None

    def launches(
        self, n_rows: int, n_sequences: int
    ) -> list[tuple[CompiledStep, dict[str, Any]]]:
        """Every step of a pass of that shape, the head over one row a sequence behind it, with the
        arguments of its launch. For benchmarks: run again, it computes what the last pass did."""
        return self._passes.launches(n_rows, n_sequences)

    # Cells that move

    @refuses
    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's K and V rows in every layer."""
        self._pages.copy(source, target)

    @refuses
    def read_rows(self, layer: int, which: int, cells: I32) -> F32:
        """K (which 0) or V (which 1) rows of a layer: float32 [len(cells), G, E]."""
        return self._pages.read(layer, which, cells)

    @refuses
    def write_rows(self, layer: int, which: int, cells: I32, rows: F32) -> None:
        """Store K or V rows at the given cells, rounded to bf16."""
        self._pages.write(layer, which, cells, rows)


def _bytes_of(cells: Cells) -> int:
    dtype, shape = cells
    return prod(shape) * DTYPES[dtype].itemsize


def _turns_bytes(schedule: CompiledSchedule) -> int:
    return max(map(_bytes_of, schedule.in_turns.values()), default=0)


def _rows_of(schedule: CompiledSchedule, buffer: Scratch) -> int:
    return schedule.few_rows if buffer.few else schedule.many_rows
