"""Owns launching a kernel: limits, constants, parameters, batches of CTAs, errors with their place.

It must not know devices or ops. A machine may be used by one thread at a time.
"""

import random
import struct
from collections.abc import Sequence
from math import prod

import numpy as np

from ptx.emulator import limits
from ptx.emulator.batch import Batch
from ptx.emulator.dependency import Dependency, Writer
from ptx.emulator.errors import CollectedErrors, EmulatorError, Fault
from ptx.emulator.lanes import WARP, Dim3, Lanes, dim3
from ptx.emulator.memory import Memory
from ptx.emulator.outputs import Output, Outputs
from ptx.emulator.schedule import Schedule
from ptx.emulator.syntax import Kernel, Module
from ptx.emulator.traits import communicates

# More lanes at once cost cache misses, fewer cost interpretation.
LANES_AT_ONCE, MAX_LANES = 1 << 13, 1 << 20
MAX_SPACE_BYTES = 1 << 27
MAX_STEPS = 200_000_000
MAX_CACHED_BATCHES = 64
LETTERS = {
    "u8": "B", "b8": "B", "s8": "b", "u16": "H", "b16": "H", "s16": "h", "u32": "I", "b32": "I",
    "s32": "i", "u64": "Q", "b64": "Q", "s64": "q", "f32": "f", "f64": "d",
}


class Machine:
    """Runs kernels on a Memory as a GPU of `arch` would, and stops at the first thing wrong.

    `seed` orders warps and atomics; 0 is lockstep. With `max_errors` above 1, errors are collected
    until so many or the launch's end. `sanitise` off keeps bounds, alignment and barriers.
    """

    def __init__(
        self, memory: Memory, arch: str = "sm_90a", seed: int = 0, sanitise: bool = True,
        max_errors: int = 1, max_steps: int = MAX_STEPS,
    ) -> None:
        self.memory, self.arch, self.seed, self.sanitise = memory, arch, seed, sanitise
        self.max_errors, self.max_steps = max_errors, max_steps
        self.n_steps = 0
        self._batches: dict[tuple[object, ...], Batch] = {}
        self._constants: dict[int, tuple[Module, dict[str, int]]] = {}
        # Launches that may still run when a programmatic one begins, the newest first.
        self._running: tuple[Writer, ...] = ()

    def launch(
        self, module: Module, entry: str, grid: int | tuple[int, ...],
        block: int | tuple[int, ...], shared_bytes: int = 0,
        args: Sequence[int | float | bytes] = (), outputs: Sequence[Output] | None = None,
        programmatic: bool = False,
    ) -> None:
        """Run `entry`; args in parameter order, `outputs` None when anything may be written.

        A `programmatic` launch may begin before the one ahead has ended: touching what that one
        wrote to its outputs is an error before griddepcontrol.wait. EmulatorError names kernel,
        line, lane and address.
        """
        kernel = module.kernels.get(entry)
        if kernel is None:
            known = ", ".join(module.kernels) or "none"
            raise EmulatorError("subset", f"no entry {entry}, the module has: {known}")
        limits.check_module(module, self.arch)
        limits.check_code(module, kernel)
        shape, threads = dim3(grid), dim3(block)
        shared = [v for v in (*module.variables, *kernel.variables) if v.space == "shared"]
        static_bytes = sum(v.n_bytes for v in shared)
        limits.check_launch(kernel, self.arch, shape, threads, static_bytes, shared_bytes)
        raw = packed(kernel, args)
        n_ctas = self._ctas_at_once(kernel, shape, threads, static_bytes + shared_bytes)
        batch = self._batch(module, kernel, shape, threads, n_ctas, shared_bytes)
        batch.params.fill(raw)
        running, self._running = self._running, ()
        if programmatic and running and self.sanitise:
            batch.dependency = Dependency(running)
        self._run(batch, prod(shape), outputs)

    def settle(self) -> None:
        """Every launch so far has ended: something that waits for all of them was put in order."""
        self._running = ()

    def _ctas_at_once(self, kernel: Kernel, grid: Dim3, block: Dim3, shared_bytes: int) -> int:
        n_all, per_cta = prod(grid), -(-prod(block) // WARP) * WARP
        if communicates(kernel):
            if n_all * per_cta > MAX_LANES:
                raise EmulatorError(
                    "limits", f"{n_all} CTAs that use flags or atomics must run together: "
                    f"{n_all * per_cta} lanes, at most {MAX_LANES}", kernel=kernel.name,
                )
            return n_all
        local = sum(v.n_bytes for v in kernel.variables if v.space == "local") * per_cta
        # The shadow of shared memory takes some bytes for each warp and granule.
        cost = shared_bytes * (12 + 6 * per_cta // WARP) + 2 * local + 1
        return max(1, min(n_all, LANES_AT_ONCE // per_cta, MAX_SPACE_BYTES // cost))

    def _batch(
        self, module: Module, kernel: Kernel, grid: Dim3, block: Dim3, n_ctas: int,
        shared_bytes: int,
    ) -> Batch:
        key = (id(module), kernel.name, grid, block, n_ctas, shared_bytes)
        batch = self._batches.get(key)
        if batch is None or batch.kernel is not kernel:
            if len(self._batches) >= MAX_CACHED_BATCHES:
                self._batches.clear()
            lanes = Lanes(grid, block, n_ctas, shared_bytes)
            batch = Batch(module, kernel, lanes, self.memory, shared_bytes,
                          self._placed(module), self.sanitise)
            self._batches[key] = batch
        return batch

    def _placed(self, module: Module) -> dict[str, int]:
        """Addresses of the module's constants and globals, placed once."""
        known = self._constants.get(id(module))
        if known is not None and known[0] is module:
            return known[1]
        places = {}
        for variable in module.variables:
            if variable.space in ("const", "global"):
                places[variable.name] = self.memory.allocate(variable.n_bytes, variable.name)
                raw = variable.initial or bytes(variable.n_bytes)
                cells = np.zeros(variable.n_bytes, np.uint8)
                cells[: len(raw)] = np.frombuffer(raw, np.uint8)
                if variable.n_bytes:
                    self.memory.write(places[variable.name], cells)
        self._constants[id(module)] = module, places
        return places

    def _run(self, batch: Batch, n_all: int, outputs: Sequence[Output] | None) -> None:
        errors: list[EmulatorError] = []
        batch.random, batch.shuffled = random.Random(self.seed), self.seed != 0
        try:
            judged = outputs is not None and self.sanitise
            batch.outputs = Outputs(self.memory, outputs or ()) if judged else None
            self._mark_inputs(batch)
            starts = list(range(0, n_all, batch.lanes.n_ctas))
            if batch.shuffled:
                batch.random.shuffle(starts)
            with np.errstate(all="ignore"):
                for first in starts:
                    batch.start(first)
                    self._run_batch(batch, errors)
            if batch.outputs is not None and not errors:
                batch.outputs.check_written()
                self._running = self._after(batch, batch.outputs)
        except Fault as fault:
            self._found(batch, fault, errors, placed=fault.kind != "outputs")
        finally:
            self._close(batch)
        if errors:
            raise CollectedErrors(errors)

    def _after(self, batch: Batch, outputs: Outputs) -> tuple[Writer, ...]:
        wrote = {
            block.base: (block.span[0], block.written)
            for block in outputs.blocks if block.written is not None
        }
        ended = Writer(batch.name, wrote)
        return batch.dependency.still_running(ended) if batch.dependency else (ended,)

    def _mark_inputs(self, batch: Batch) -> None:
        for block in self.memory.blocks():
            block.writable = batch.outputs is None or block in batch.outputs.blocks

    def _close(self, batch: Batch) -> None:
        for block in self.memory.blocks():
            block.writable = True
            if block.written is not None or block.shadow is not None:
                block.close()
        batch.outputs, batch.collect, batch.dependency = None, None, None

    def _run_batch(self, batch: Batch, errors: list[EmulatorError]) -> None:
        schedule = Schedule(batch, self.max_steps)
        if self.max_errors > 1:
            batch.collect = lambda fault: self._found(batch, fault, errors)
        while True:
            try:
                schedule.run()
                batch.completions.at_end()
                break
            except Fault as fault:
                self._found(batch, fault, errors)
                lanes = fault.lanes
                if lanes is None or fault.kind == "deadlock":
                    lanes = np.flatnonzero(schedule.alive)
                schedule.drop(lanes, batch.site)
        self.n_steps += batch.n_steps
        batch.n_steps = 0

    def _found(
        self, batch: Batch, fault: Fault, errors: list[EmulatorError], placed: bool = True
    ) -> None:
        """Raise the error, or keep it while there is room for more."""
        error = self._error(batch, fault, placed)
        if self.max_errors == 1:
            raise error from None
        errors.append(error)
        if len(errors) >= self.max_errors:
            raise CollectedErrors(errors) from None

    def _error(self, batch: Batch, fault: Fault, placed: bool) -> EmulatorError:
        where: dict[str, object] = {
            "kernel": batch.name, "address": fault.address, "allocation": fault.allocation,
            "offset": fault.offset,
        }
        if placed and batch.site < len(batch.kernel.code):
            source = batch.kernel.code[batch.site]
            where |= {"line": source.line, "text": source.text}
        if fault.lanes is not None and len(fault.lanes):
            lane = int(fault.lanes[0])
            where |= {"cta": batch.lanes.cta_of(lane), "warp": int(batch.lanes.warp[lane]),
                      "lane": lane % WARP}
        return EmulatorError(fault.kind, fault.message, **where)


def packed(kernel: Kernel, args: Sequence[int | float | bytes]) -> bytes:
    """The bytes of the parameter space."""
    if len(args) != len(kernel.params):
        raise EmulatorError(
            "limits", f"{len(args)} arguments, the entry has {len(kernel.params)}",
            kernel=kernel.name, line=kernel.line,
        )
    raw = bytearray(max((p.offset + p.n_bytes for p in kernel.params), default=0))
    for param, value in zip(kernel.params, args, strict=True):
        try:
            cells = value if isinstance(value, bytes) else struct.pack(
                "<" + LETTERS[param.type], value if param.type[0] == "f" else int(value)
            )
        except (struct.error, OverflowError, KeyError):
            raise EmulatorError("limits", f"{param.name} is {value!r}, expected {param.type}",
                                kernel=kernel.name, line=kernel.line) from None
        if len(cells) != param.n_bytes:
            raise EmulatorError("limits", f"{param.name} has {len(cells)} bytes, expected "
                                f"{param.n_bytes}", kernel=kernel.name, line=kernel.line)
        raw[param.offset : param.offset + param.n_bytes] = cells
    return bytes(raw)
