"""Owns a schedule bound to a device's buffers, and runs it eagerly over chunks of rows.

A chunk is up to `max_rows` rows of any sessions. Weights are uploaded once, each read from its
source only when its turn comes. It must not know sessions or positions beyond what a chunk says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from engine.records import ModelPlan, Step
from ptx.device import Buffer, Device, DeviceError

MAX_ROWS = 512
# Attention's table grows in these steps, so that few shapes are ever seen.
TABLE_STEP = 512
INDEX_INPUTS = ("ids", "positions", "slots", "seq_of_token", "rows")

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Chunk:
    """One pass: per-row ids, positions, cache rows and sequence, the sequences' cell tables, and
    which rows want logits."""

    ids: I32
    positions: I32
    slots: I32
    owner: I32
    tables: Sequence[I32]
    rows: npt.NDArray[np.intp]


class Program:
    """A model's schedule with its weights, KV rows and scratch on one device."""

    def __init__(
        self, device: Device, plan: ModelPlan, n_cells: int, progress: Callable[[float], None]
    ) -> None:
        self.max_rows = MAX_ROWS
        self._device = device
        self._schedule = plan.schedule
        dims = plan.dims
        rows = (n_cells, dims.n_kv_heads, dims.d_head)
        try:
            self._kv = [
                (self._new(rows, f"k_cache.{i}"), self._new(rows, f"v_cache.{i}"))
                for i in range(dims.n_layers)
            ]
            self._scratch = {
                name: self._new((MAX_ROWS, *columns), name)
                for name, columns in plan.schedule.buffers.items()
            }
            self._index = {
                name: device.allocate((MAX_ROWS,), "i32", name) for name in INDEX_INPUTS
            }
            self._fixed = self._load_weights(plan, progress)
        except DeviceError as error:
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
        for layer, (k_rows, v_rows) in enumerate(self._kv):
            fixed[f"k_cache.{layer}"] = k_rows
            fixed[f"v_cache.{layer}"] = v_rows
        return fixed

    def run(self, chunk: Chunk) -> F32:
        """Logits [n_rows, V] of the rows that want them; KV rows are written for all."""
        n_rows = len(chunk.ids)
        inputs = {"ids": chunk.ids, "positions": chunk.positions, "slots": chunk.slots,
                  "seq_of_token": chunk.owner}
        buffers: dict[str, Any] = dict(self._fixed)
        for name, values in inputs.items():
            buffers[name] = self._index[name][:n_rows]
            self._device.upload(buffers[name], values)
        for name, scratch in self._scratch.items():
            buffers[name] = scratch[:n_rows]
        buffers["table"] = self._table(chunk)
        self._launch(self._schedule.embed, buffers)
        for layer in self._schedule.layers:
            self._launch(layer, buffers)
        return self._head(chunk, buffers)

    def _head(self, chunk: Chunk, buffers: dict[str, Any]) -> F32:
        n_wanted = len(chunk.rows)
        if not n_wanted:
            return np.zeros((0, 0), np.float32)
        for name in ("h_out", "logits"):
            buffers[name] = self._scratch[name][:n_wanted]
        buffers["rows"] = self._index["rows"][:n_wanted]
        self._device.upload(buffers["rows"], chunk.rows.astype(np.int32))
        self._launch(self._schedule.head, buffers)
        return self._device.download(buffers["logits"])

    def _launch(self, steps: Sequence[Step], buffers: dict[str, Any]) -> None:
        for step in steps:
            args = {
                name: buffers[value] if isinstance(value, str) else value
                for name, value in step.args.items()
            }
            self._device.launch(step.op, **args)

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

    # Cache rows, for pages that move

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's K and V rows in every layer."""
        for rows in self._kv:
            for cache in rows:
                self._device.copy(cache[_page(source)], cache[_page(target)])

    def read_rows(self, layer: int, which: int, cells: I32) -> F32:
        """K (which 0) or V (which 1) rows of a layer: float32 [len(cells), G, E]."""
        cache = self._kv[layer][which]
        return np.concatenate([self._device.download(cache[run]) for run in _runs(cells)])

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
