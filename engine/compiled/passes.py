"""Owns running a pass over the rows of a chunk: which steps, on which parts of which buffers.

A pass of few rows is one graph, in which its numbers come, its steps run and the answers of its
head go; what a device cannot capture runs step by step. A pass of many rows is launched step by
step, its head after it. It must not know sessions, nor what steps compute.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.chunk import Chunk
from engine.compiled.drawing import Drawing
from engine.compiled.graphs import Graphs
from engine.compiled.head import N_BUFFERS, Answers, Batch, DeviceRow, Turns
from engine.compiled.inputs import Inputs
from engine.compiled.records import CompiledSchedule, CompiledStep, Rows
from engine.compiled.staging import Staging
from engine.logits import LogitsRow
from ptx.device import Device

F32 = npt.NDArray[np.float32]
# Threads that compile kernels at once while a model is opened.
N_LOADERS = 8
# Rows of prompts whose kernels differ from those of the longest pass: work is divided otherwise.
PROMPTS = (64, 256)


class Passes:
    """A schedule on the buffers of one device: `fixed` ones whole, `scratch` by rows of a pass."""

    def __init__(
        self,
        device: Device,
        schedule: CompiledSchedule,
        fixed: Mapping[str, Any],
        scratch: Mapping[str, Any],
        inputs: Inputs,
        staging: Staging,
        n_vocab: int,
    ) -> None:
        """Of logits the first `n_vocab` are told."""
        self._device, self._schedule = device, schedule
        self._fixed, self._scratch = fixed, scratch
        self._inputs, self._staging = inputs, staging
        # A stage without output has no logits to draw from.
        self._drawing = (
            Drawing(device, staging, n_vocab, schedule.few_rows) if schedule.head else None
        )
        self._ids = staging.array((schedule.few_rows, 2), "i32", "best ids")
        self._values = staging.array((schedule.few_rows, 4), "f32", "signals")
        self._graphs = Graphs(device)
        self._turns = Turns()
        # The head whose answers nobody has asked for yet.
        self._open: Callable[[], Batch | None] = _nothing
        self._steps = _steps_of(schedule)

    def run(
        self, chunk: Chunk, seen: Callable[[F32], None] | None = None
    ) -> Sequence[LogitsRow]:
        """Run a chunk; the logits of the rows that want them. `seen` as in `CompiledProgram.run`.
        """
        n_rows, n_sequences, n_wanted = len(chunk.ids), len(chunk.state_in), len(chunk.rows)
        self._settle()
        self._inputs.write(chunk)
        if chunk.hidden is not None:
            self._device.upload(self._scratch["h"][:n_rows], chunk.hidden)
        self._staging.begin()
        is_few = n_rows <= self._schedule.few_rows
        if is_few and seen is None:
            return self._few(n_rows, n_sequences, n_wanted)
        self._inputs.send()
        bound = self._bound(n_rows, n_sequences)
        if seen is None:
            self._launch(self._steps["many"], bound)
        else:
            layers = self._schedule.few if is_few else self._schedule.many
            for group in (self._schedule.embed, *layers):
                self._launch(group, bound)
                seen(self.hidden(n_rows))
        return self._heads(chunk.rows)

    def hidden(self, n_rows: int) -> F32:
        """The rows that the last pass left, float32 [n_rows, D]."""
        rows: F32 = self._device.download(self._scratch["h"][:n_rows])
        return rows

    def launches(
        self, n_rows: int, n_sequences: int
    ) -> list[tuple[CompiledStep, dict[str, Any]]]:
        """As `CompiledProgram.launches`."""
        self._settle()
        n_wanted = min(n_sequences, self._schedule.few_rows)
        body = self._bound(n_rows, n_sequences)
        head = body | self._bound_head(n_wanted, self._turns.take())
        self._inputs.send_rows(np.arange(n_wanted))
        layers = self._steps["few" if n_rows <= self._schedule.few_rows else "many"]
        return [
            (step, {name: _argument(value, buffers) for name, value in step.args.items()})
            for steps, buffers in ((layers, body), (self._schedule.head, head)) for step in steps
        ]  # fmt: skip

    def prepare(self) -> None:
        """Load the kernels of one token and of prompts, several at once: a driver compiles each,
        and the first token would wait for one after the other."""
        if not self._graphs.can:
            return
        device: Any = self._device
        wanted = {}
        few, many = self._schedule.few_rows, self._schedule.many_rows
        for n_rows in (1, *(n for n in PROMPTS if few < n < many), many):
            for step, args in self.launches(n_rows, 1):
                shapes = tuple(getattr(value, "shape", None) for value in args.values())
                wanted[step.op.name, shapes] = (step.op, args)
        with ThreadPoolExecutor(N_LOADERS) as pool:
            list(pool.map(lambda one: device.prepare(one[0], **one[1]), wanted.values()))

    def _few(self, n_rows: int, n_sequences: int, n_wanted: int) -> Sequence[LogitsRow]:
        """A pass of few rows as one graph: its numbers come, it runs, answers of its head go."""

        def launch(which: int) -> None:
            bound = self._bound(n_rows, n_sequences)
            self._inputs.send()
            self._launch(self._steps["few"], bound)
            if n_wanted:
                self._launch_head(bound, n_wanted, which)

        shape = (n_rows, n_sequences, n_wanted)
        if not n_wanted:
            self._graphs.run(shape, launch)
            return []
        which = self._turns.take()
        self._graphs.run(shape, launch, which, N_BUFFERS)
        return self._answers(n_wanted, which)

    def _heads(self, rows: npt.NDArray[np.intp]) -> Sequence[LogitsRow]:
        """Logits of these rows of a pass of many, as many at once as small passes have."""
        most = self._schedule.few_rows
        bound = {**self._fixed, "h": self._scratch["h"]}
        found: list[LogitsRow] = []
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            if start:
                self._settle()
                self._inputs.send_rows(part)
            which, n_rows = self._turns.take(), len(part)
            launch = partial(self._launch_head, bound, n_rows)
            self._graphs.run((0, 0, n_rows), launch, which, N_BUFFERS)
            found += self._answers(n_rows, which)
        return found

    def _launch_head(self, bound: Mapping[str, Any], n_rows: int, which: int) -> None:
        """The head over so many of the rows in `bound`, into buffer `which`."""
        named = {**bound, **self._bound_head(n_rows, which)}
        self._launch(self._schedule.head, named)
        self._staging.fetch(named["best"], self._ids[:n_rows])
        self._staging.fetch(named["signal"], self._values[:n_rows])

    def _answers(self, n_rows: int, which: int) -> list[LogitsRow]:
        """The rows of the head in buffer `which`, which the device may still be at."""
        assert self._drawing is not None
        logits = self._scratch[f"logits.{which}"][:n_rows]
        batch = Batch(self._device, logits, partial(self._arrived, n_rows), self._drawing)
        self._turns.hold(which, batch)
        self._open = weakref.ref(batch)
        return [DeviceRow(batch, index) for index in range(n_rows)]

    def _arrived(self, n_rows: int) -> Answers:
        """Ids and signals of the head that ran last, once it has run."""
        self._staging.wait()
        return self._ids[:n_rows].tolist(), self._values[:n_rows].tolist()

    def _settle(self) -> None:
        """Let the last head's answers be taken before the next one's lie in their place."""
        batch = self._open()
        if batch is not None:
            batch.answers()
        self._open = _nothing

    def _bound(self, n_rows: int, n_sequences: int) -> dict[str, Any]:
        """Every buffer of a pass by name, as many rows of it as the pass has."""
        scratch = {name: buffer[:n_rows] for name, buffer in self._scratch.items()}
        return {**self._fixed, **scratch, **self._inputs.named(n_rows, n_sequences)}

    def _bound_head(self, n_wanted: int, which: int) -> dict[str, Any]:
        """The buffers of a head over so many rows, where they are not those of the pass."""
        names = ("h_out", "best", "signal", "best_work")
        return {
            **{name: self._scratch[name][:n_wanted] for name in names},
            "rows": self._inputs.named(n_wanted, 1)["rows"],
            "logits": self._scratch[f"logits.{which}"][:n_wanted],
        }

    def _launch(self, steps: Sequence[CompiledStep], buffers: Mapping[str, Any]) -> None:
        for step in steps:
            args = {name: _argument(value, buffers) for name, value in step.args.items()}
            self._device.launch(step.op, **args)


def _nothing() -> None:
    return None


def _steps_of(schedule: CompiledSchedule) -> dict[str, list[CompiledStep]]:
    """Steps of each kind of pass, in order."""
    few = [step for group in (schedule.embed, *schedule.few) for step in group]
    many = [step for group in (schedule.embed, *schedule.many) for step in group]
    return {"few": few, "many": many}


def _argument(value: Any, buffers: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return buffers[value]
    if isinstance(value, Rows):
        return buffers[value.name][value.start : value.stop]
    return value
