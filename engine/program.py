"""Owns a schedule bound to a device's buffers, and runs it eagerly over chunks of rows.

A chunk is up to `max_rows` rows of any sessions. Weights are uploaded once, each read from its
source only when its turn comes. It must not know sessions or positions beyond what a chunk says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.bf16 import round_to_bf16, widen_bf16
from engine.chunk import Chunk, refuses
from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from engine.logits import HostRow, LogitsRow
from engine.records import ModelPlan, Step
from engine.state_slots import StateSlots
from ptx.device import Buffer, Device
from ptx.op import PtxError

MAX_ROWS = 512
# Attention's table grows in these steps, so that few shapes are ever seen.
TABLE_STEP = 512
INDEX_INPUTS = ("ids", "positions", "slots", "seq_of_token", "rows")
SEQUENCE_INPUTS = ("starts", "state_in", "state_out")

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


class Program(StateSlots):
    """A model's schedule with its weights, KV rows and scratch on one device."""

    def __init__(
        self,
        device: Device,
        plan: ModelPlan,
        n_cells: int,
        n_slots: int,
        progress: Callable[[float], None],
    ) -> None:
        self.max_rows = MAX_ROWS
        self._device = device
        self._schedule = plan.schedule
        self._gives_hidden = plan.gives_hidden
        self._rounded = plan.schedule.activations if plan.rounds_activations else frozenset()
        self._n_vocab = plan.n_vocab
        rows = (n_cells, plan.kv.n_heads, plan.kv.d_head)
        try:
            self._kv = {
                layer: (self._new(rows, f"k_cache.{layer}"), self._new(rows, f"v_cache.{layer}"))
                for layer in plan.kv.layers
            }
            self.states = {
                name: self._new((n_slots, *shape), name) for name, shape in plan.states.items()
            }
            self._scratch = {
                name: self._new((MAX_ROWS, *columns), name)
                for name, columns in plan.schedule.buffers.items()
            }
            self._index = {
                name: device.allocate((MAX_ROWS,), "i32", name) for name in INDEX_INPUTS
            }
            self._fixed = self._load_weights(plan, progress)
        except PtxError as error:
            raise RuntimeFailure(f"context: {error}") from None

    def _new(self, shape: tuple[int, ...], name: str) -> Buffer:
        return self._device.allocate(shape, "f32", name)

    def _load_weights(
        self, plan: ModelPlan, progress: Callable[[float], None]
    ) -> dict[str, Buffer]:
        """Everything that no chunk changes: weights, constants, KV rows by name."""
        fixed: dict[str, Buffer] = {}
        for done, (name, weight) in enumerate(plan.weights.items()):
            progress(done / len(plan.weights))
            fixed[name] = self._new(weight.shape, name)
            self._device.upload(fixed[name], weight.load())
        for name, value in plan.schedule.constants.items():
            fixed[name] = self._device.allocate(value.shape, "f64", name)
            self._device.upload(fixed[name], value)
        fixed.update(self.states)
        for layer, (k_rows, v_rows) in self._kv.items():
            fixed[f"k_cache.{layer}"] = k_rows
            fixed[f"v_cache.{layer}"] = v_rows
        return fixed

    @refuses
    def run(self, chunk: Chunk) -> tuple[Sequence[LogitsRow], F32 | None]:
        """Logits of the rows that want them, and the hidden rows of a stage that gives
        them; KV rows and recurrent state are written for all."""
        n_rows = len(chunk.ids)
        inputs = {"ids": chunk.ids, "positions": chunk.positions, "slots": chunk.slots,
                  "seq_of_token": chunk.seq_of_token}
        buffers: dict[str, Any] = dict(self._fixed)
        for name, values in inputs.items():
            buffers[name] = self._index[name][:n_rows]
            self._device.upload(buffers[name], values)
        for name, scratch in self._scratch.items():
            buffers[name] = scratch[:n_rows]
        buffers["table"] = self._table(chunk)
        if self.states:
            for name in SEQUENCE_INPUTS:
                buffers[name] = self._sequence_input(name, getattr(chunk, name))
        if chunk.hidden is not None:
            self._device.upload(buffers["h"], chunk.hidden)
        for steps in (self._schedule.embed, *self._schedule.layers):
            self._launch(steps, buffers, chunk.slots)
        hidden = self._device.download(buffers["h"]) if self._gives_hidden else None
        return [HostRow(row) for row in self._head(chunk, buffers)], hidden

    def _head(self, chunk: Chunk, buffers: dict[str, Any]) -> F32:
        n_wanted = len(chunk.rows)
        if not n_wanted:
            return np.zeros((0, 0), np.float32)
        for name in ("h_out", "logits"):
            buffers[name] = self._scratch[name][:n_wanted]
        buffers["rows"] = self._index["rows"][:n_wanted]
        self._device.upload(buffers["rows"], chunk.rows.astype(np.int32))
        self._launch(self._schedule.head, buffers, chunk.slots)
        logits = self._device.download(buffers["logits"])
        return logits[:, : self._n_vocab]

    def _launch(self, steps: Sequence[Step], buffers: dict[str, Any], slots: I32) -> None:
        for step in steps:
            args = {
                name: buffers[value] if isinstance(value, str) else value
                for name, value in step.args.items()
            }
            self._device.launch(step.op, **args)
            if self._rounded:
                self._round_outputs(step, buffers, slots)

    def _round_outputs(self, step: Step, buffers: dict[str, Any], slots: I32) -> None:
        """Put what a step stored as an activation on the BF16 grid; of a cache, the new rows."""
        for param in step.op.params:
            name = step.args.get(param.name)
            if not param.out or not isinstance(name, str):
                continue
            if name in self._rounded:
                parts = [buffers[name]]
            elif name.partition(".")[0] in ("k_cache", "v_cache"):
                parts = [buffers[name][run] for run in _runs(slots)]
            else:
                continue
            for part in parts:
                values = self._device.download(part)
                self._device.upload(part, widen_bf16(round_to_bf16(values)))

    def _table(self, chunk: Chunk) -> Buffer:
        """Cell tables of the chunk's sequences, padded to one width: i32 [S, W]."""
        widest = max(len(table) for table in chunk.tables)
        width = -(-max(widest, 1) // TABLE_STEP) * TABLE_STEP
        table = np.zeros((len(chunk.tables), width), np.int32)
        for row, cells in zip(table, chunk.tables, strict=True):
            row[: len(cells)] = cells
        buffer = self._device.allocate(table.shape, "i32", "table")
        self._device.upload(buffer, table)
        return buffer

    def _sequence_input(self, name: str, values: I32) -> Buffer:
        buffer = self._device.allocate(values.shape, "i32", name)
        self._device.upload(buffer, values)
        return buffer

    # Cache rows that move

    @refuses
    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's K and V rows in every layer."""
        for rows in self._kv.values():
            for cache in rows:
                self._device.copy(cache[_page(source)], cache[_page(target)])

    @refuses
    def read_rows(self, layer: int, which: int, cells: I32) -> F32:
        """K (which 0) or V (which 1) rows of a layer: float32 [len(cells), G, E]."""
        cache = self._kv[layer][which]
        return np.concatenate([self._device.download(cache[run]) for run in _runs(cells)])

    @refuses
    def write_rows(self, layer: int, which: int, cells: I32, rows: F32) -> None:
        """Store K or V rows at the given cells."""
        cache = self._kv[layer][which]
        done = 0
        for run in _runs(cells):
            n_rows = run.stop - run.start
            self._device.upload(cache[run], rows[done : done + n_rows])
            done += n_rows


def _page(index: int) -> slice:
    return slice(index * PAGE_TOKENS, (index + 1) * PAGE_TOKENS)


def _runs(cells: I32) -> list[slice]:
    """The cells as runs of consecutive rows, in order."""
    breaks = np.flatnonzero(np.diff(cells) != 1) + 1
    return [slice(int(part[0]), int(part[-1]) + 1) for part in np.split(cells, breaks)]
