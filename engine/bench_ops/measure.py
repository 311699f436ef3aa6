"""Owns one case on a card: its buffers, its kernels by turns, and what each takes of the card.

It must not know ceilings, bars or peers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from engine.bench_ops.case import Case, dims_of, kernels_of
from engine.bench_ops.timing import Effort, Spread, time_launches
from ptx.assemble import ARCHS, Report, resident_warps
from ptx.bench import CACHE_TIMES, MAX_SETS, buffers_for, bytes_of
from ptx.devices.launch_checks import axes
from ptx.op import Dims, Kernel, Op, PtxError

# Beside a tuned kernel the portable one is not run on more operations: it would take many seconds.
PORTABLE_FLOPS = 1e12


@dataclass(frozen=True)
class Takes:
    """Registers and local bytes of a thread, shared bytes of a block, and the share of the
    multiprocessor's warps that run at once; None where the architecture is not in the gate."""

    registers: int
    local_bytes: int
    shared_bytes: int
    occupancy: float | None


@dataclass(frozen=True)
class Timed:
    """A kernel at a case's dims. `picked` is the one that a launch would take; `n_sets` of buffers
    were used by turns."""

    case: Case
    kernel: str
    dims: Dims
    us: Spread
    takes: Takes
    picked: bool
    n_sets: int

    @property
    def rate(self) -> float:
        """Bytes or operations in a second."""
        return self.case.amount / self.us.median * 1e6


@dataclass(frozen=True)
class Failed:
    """A case, or a kernel of it, that could not be measured, and why."""

    label: str
    kernel: str
    reason: str


def n_sets_for(n_bytes: int, l2_bytes: int) -> int:
    """Sets of buffers that do not fit into the cache together, within reason."""
    return max(1, min(MAX_SETS, -(-CACHE_TIMES * l2_bytes // max(n_bytes, 1))))


def measure_case(
    device: Any, case: Case, op: Op, effort: Effort, all_kernels: bool
) -> Iterator[Timed | Failed]:
    """Every kernel that fits, the picked one first, or that one alone.

    The portable one is left out of the largest cases, unless there is no other.
    """
    try:
        dims = dims_of(case, op)
        kernels = kernels_of(op, device.target.runs, dims)
        n_sets = n_sets_for(bytes_of(op, dims), device.facts.l2_bytes)
        sets = [buffers_for(device, op, dims, seed, case.values) for seed in range(n_sets)]
    except (PtxError, KeyError) as error:
        # A KeyError: a scalar that `ptx.bench` has no value for.
        yield Failed(case.label, "", str(error))
        return
    for kernel in kernels if all_kernels else kernels[:1]:
        if kernel.target == "portable" and kernel is not kernels[0] and (
            case.n_flops > PORTABLE_FLOPS
        ):
            continue
        try:
            alone = replace(op, kernels=(kernel,))
            launches = [partial(device.launch, alone, **args) for args in sets]
            us = time_launches(device, launches, effort)
            takes = _takes(device, alone, kernel, dims)
        except PtxError as error:
            yield Failed(case.label, kernel.stem, str(error))
            continue
        yield Timed(case, kernel.stem, dims, us, takes, kernel is kernels[0], n_sets)


def _takes(device: Any, op: Op, kernel: Kernel, dims: Dims) -> Takes:
    loaded, launch = device.loaded(op, dims), kernel.launch(dims)
    arch = next((a for a in (device.facts.arch, f"{device.facts.arch}a") if a in ARCHS), None)
    report = Report(loaded.n_registers, loaded.static_shared_bytes)
    share = arch and resident_warps(report, prod(axes(launch.block)), launch.shared_bytes, arch)
    return Takes(
        loaded.n_registers, loaded.local_bytes,
        loaded.static_shared_bytes + launch.shared_bytes, share or None,
    )
