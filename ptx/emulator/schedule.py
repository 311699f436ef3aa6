"""Owns who runs next: program counters, divergence and reconvergence, waiting, deadlock.

It must not know what instructions compute. Lanes at the lowest counter run together until they
branch apart, wait, leave, or reach other lanes. With a seed other than 0 the warps run in random
cohorts, one of which goes as far as it can before the next one does.
It is long because all waiting states must be seen together.
"""

import numpy as np

from ptx.emulator.barriers import N_BARRIERS
from ptx.emulator.batch import Batch
from ptx.emulator.cohorts import Cohorts
from ptx.emulator.deadlock import deadlock
from ptx.emulator.decode import Flow, Step
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import WARP, Sel
from ptx.emulator.members import complete_masks, in_whole_groups, whole_warps
from ptx.numerics import Array

READY, EXITED, AT_BARRIER, GATHERING, YIELDED, WAITING = range(6)
FAR = np.iinfo(np.int32).max
# Looks of everybody that waits, in vain: a loop that gives up after some tries may still end.
MAX_FRUITLESS_WAKES = 2_000


class Schedule:
    """Runs the lanes of a batch from entry to exit."""

    def __init__(self, batch: Batch, max_steps: int) -> None:
        self.batch, self.lanes, self.code = batch, batch.lanes, batch.code
        lanes = self.lanes
        self.pcs = np.zeros(lanes.n_lanes, np.int32)
        self.status = np.where(lanes.exists, READY, EXITED).astype(np.int8)
        self.alive = lanes.exists.copy()
        self._n_alive = int(self.alive.sum())
        self._yielded_at = np.full(lanes.n_lanes, -1, np.int64)
        self._polls = any(step.flow in (Flow.POLL, Flow.WAIT) for step in self.code)
        copies = any(source.opcode == "cp" for source in batch.kernel.code)
        # With a seed, copies may land between any two steps.
        self._tick = batch.completions.tick if batch.shuffled and copies else None
        self._left = max_steps
        self._max_steps = max_steps
        self._fruitless = 0
        self._last_progress = self._looked_at = -1
        self._cohorts = Cohorts(batch.random, lanes.n_lanes // WARP)
        self.current: Array = np.zeros(0, np.int64)

    def run(self) -> None:
        """Until every lane has left; Fault for what goes wrong."""
        while (picked := self._pick()) is not None:
            self._advance(*picked)

    def drop(self, index: Array, at: int) -> None:
        """Take lanes out after a fault; the others of the running group go on from `at`."""
        running = self.current
        keep = running[~np.isin(running, index)]
        self.pcs[keep] = at
        self.status[keep] = READY
        self._leave(index)

    # Choosing

    def _pick(self) -> tuple[int, Sel, int] | None:
        """The lowest counter, the lanes there, and the next counter where others stand."""
        while True:
            ready = self.status == READY
            if not ready.any():
                if not self.alive.any():
                    return None
                self._wake()
                continue
            if self.batch.shuffled:
                ready = self._cohorts.first(ready)
            masked = np.where(ready, self.pcs, FAR)
            pc = int(masked.min())
            here = masked == pc
            masked[here] = FAR
            index = np.flatnonzero(here)
            return pc, self.lanes.compact(index), int(masked.min())

    def _wake(self) -> None:
        """Nobody is ready: let pollers look again, let copies land, or say who waits for what."""
        batch = self.batch
        yielded = self.status == YIELDED
        if yielded.any():
            moved = yielded & (self._yielded_at != batch.progress)
            if moved.any():
                self.status[moved] = READY
                return
        gathering = self.status == GATHERING
        if gathering.any() and self._looked_at != batch.progress:
            self._looked_at = batch.progress
            self.status[gathering] = READY
            return
        if batch.completions.advance():
            self._fruitless = 0
            return
        if yielded.any() and self._fruitless < MAX_FRUITLESS_WAKES:
            if self._last_progress != batch.progress:
                self._fruitless, self._last_progress = 0, batch.progress
            self._fruitless += 1
            self.status[yielded] = READY
            return
        raise deadlock(batch, self.pcs, self.status, self.alive)

    # Running

    def _advance(self, pc: int, sel: Sel, stop: int) -> None:
        """Run a group from `pc` until it must be chosen anew."""
        code, batch = self.code, self.batch
        self.current = self.lanes.index(sel)
        whole: bool | None = None
        n_left = self._left
        while True:
            if pc >= len(code):
                self._leave(self.current)
                break
            step = code[pc]
            batch.site = pc
            if self._tick is not None:
                self._tick()
            n_left -= 1
            flow = step.flow
            if flow is Flow.PLAIN:
                if step.guard is None:
                    step.run(sel)
                else:
                    self._guarded(step, sel)
                pc += 1
            elif flow is Flow.BRANCH:
                after = self._branch(step, sel, pc)
                if after < 0:
                    break
                pc = after
            elif flow is Flow.GATHER:
                if whole is None:
                    whole = whole_warps(self.lanes, sel)
                if not (whole and step.full_mask and step.guard is None and step.n_warps == 1):
                    self._gather(step, sel, pc)
                    break
                step.run(sel)
                pc += 1
            elif flow is Flow.POLL:
                self._guarded(step, sel)
                self._yielded_at[sel] = batch.progress
                pc += 1
            elif flow is Flow.BARRIER and self._everybody(step, sel):
                batch.clocks.join_all()
                batch.progress += 1
                pc += 1
            else:
                self._special(step, sel, pc)
                break
            if pc >= stop or n_left <= 0:
                self.pcs[sel] = pc
                break
        batch.n_steps += self._left - n_left
        self._left = n_left
        if n_left <= 0:
            raise Fault("deadlock", f"no end after {self._max_steps} executed instructions",
                        self.current)

    def _everybody(self, step: Step, sel: Sel) -> bool:
        """Whether all living lanes of the batch pass a plain barrier together."""
        call = step.barrier
        if call.count is not None or call.value is not None or step.guard is not None:
            return False
        if self.batch.barriers.pending or len(self.current) != self._n_alive:
            return False
        number = np.asarray(call.number(sel))
        return number.ndim == 0 and int(number) < N_BARRIERS

    def _chosen(self, step: Step, sel: Sel) -> Sel | None:
        """The lanes whose guard holds; None for none."""
        if step.guard is None:
            return sel
        holds = step.guard(sel)
        if holds.all():
            return sel
        if not holds.any():
            return None
        return self.lanes.compact(self.lanes.index(sel)[holds])

    def _guarded(self, step: Step, sel: Sel) -> None:
        chosen = self._chosen(step, sel)
        if chosen is not None:
            step.run(chosen)

    def _branch(self, step: Step, sel: Sel, pc: int) -> int:
        """Where the whole group goes, or -1 when it must be chosen anew."""
        chosen = self._chosen(step, sel)
        if chosen is None:
            return pc + 1
        if chosen is not sel:
            if step.uniform:
                raise Fault("undefined", "a .uni branch goes two ways", self.lanes.index(chosen))
            self.pcs[sel] = pc + 1
            self.pcs[chosen] = step.target
            self._yield(chosen, step.target <= pc)
            return -1
        if self._polls and step.target <= pc:
            self.pcs[sel] = step.target
            self._yield(sel, True)
            return -1
        return step.target

    def _yield(self, sel: Sel, backward: bool) -> None:
        """Lanes that looked for something and loop let the others go on first."""
        if not (self._polls and backward):
            return
        index = self.lanes.index(sel)
        idle = index[self._yielded_at[index] == self.batch.progress]
        self.status[idle] = YIELDED
        self._yielded_at[np.setdiff1d(index, idle)] = -1

    def _special(self, step: Step, sel: Sel, pc: int) -> None:
        """Steps after which the group is chosen anew."""
        chosen = self._chosen(step, sel)
        self.pcs[sel] = pc + 1
        if chosen is None:
            return
        index = self.lanes.index(chosen)
        self.pcs[chosen] = pc
        if step.flow is Flow.EXIT:
            self._leave(index)
        elif step.flow is Flow.BARRIER:
            index = self._hold(index, pc) if step.aligned else index
            if len(index):
                self.status[index] = AT_BARRIER
                self._release(
                    self.batch.barriers.arrive(index, step.barrier, self.alive, step.aligned)
                )
        else:
            self._wait(step, index)

    def _hold(self, index: Array, pc: int) -> Array:
        """Lanes whose warp is complete; the others wait while some of their warp look for a flag.
        """
        waiting = np.flatnonzero((self.status == GATHERING) & (self.pcs == pc))
        # Of these warps alone: those of another may just have been woken to look once more.
        warp = self.lanes.global_warp
        index = np.union1d(index, waiting[np.isin(warp[waiting], warp[index])])
        held = self._looking()[self.lanes.global_warp[index]]
        self.status[index[held]] = GATHERING
        return np.asarray(index[~held])

    def _wait(self, step: Step, index: Array) -> None:
        assert step.ready is not None
        ready = step.ready(index)
        going = index[ready]
        step.run(going)
        self.pcs[going] += 1
        blocked = index[~ready]
        self.status[blocked] = YIELDED
        self._yielded_at[blocked] = self.batch.progress

    def _leave(self, index: Array) -> None:
        self.status[index] = EXITED
        self.alive[index] = False
        self._n_alive -= len(index)
        self.batch.claims.at_exit(index)
        self.batch.products.at_exit(index)
        if self.batch.barriers.pending:
            self._release(self.batch.barriers.release(self.alive))
        self.batch.progress += 1

    def _release(self, index: Array) -> None:
        if not len(index):
            return
        self.batch.progress += 1
        barriers = self.batch.barriers
        trues, counts = barriers.totals(index)
        for pc in np.unique(self.pcs[index]):
            call = self.code[pc].barrier
            if call.put is not None:
                mine = self.pcs[index] == pc
                results = {"popc": trues, "or": trues > 0, "and": trues == counts}
                call.put(index[mine], results[call.reduces][mine])
        barriers.leave(index)
        self.pcs[index] += 1
        self.status[index] = READY

    def _gather(self, step: Step, sel: Sel, pc: int) -> None:
        """Lanes wait until all of their member mask are at this step, then run it together."""
        assert step.mask is not None
        chosen = self._chosen(step, sel)
        self.pcs[sel] = pc + 1
        if chosen is None:
            return
        arriving = self.lanes.index(chosen)
        self.pcs[arriving] = pc
        waiting = np.flatnonzero((self.status == GATHERING) & (self.pcs == pc))
        index = np.union1d(arriving, waiting)
        complete = complete_masks(self.lanes, index, step.mask(index), self.alive)
        looking = self._looking()[self.lanes.global_warp[index]]
        if step.aligned and not (complete | looking).all():
            raise Fault("barrier", "lanes of the warp are elsewhere", index[~complete])
        going = index[complete]
        if step.n_warps > 1 and len(going):
            going = going[in_whole_groups(self.lanes, going, step.n_warps, self.alive)]
        self.status[index] = GATHERING
        if len(going):
            self.current = going
            step.run(self.lanes.compact(going))
            self.pcs[going] = pc + 1
            self.status[going] = READY

    def _looking(self) -> Array:
        """Warps with lanes that look for something before they come to where the others are."""
        return np.asarray((self.status == YIELDED).reshape(-1, WARP).any(axis=1))
