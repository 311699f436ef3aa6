"""Owns the memory plan of one model: what weights, state and scratch need, checked first.

A model that does not fit is refused with the arithmetic; nothing was allocated then.
"""

from dataclasses import dataclass

from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from engine.records import ModelPlan
from ptx.device import Device, DeviceError

F32_BYTES = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose; `state_bytes` is recurrent state."""

    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.scratch_bytes


def plan_memory(plan: ModelPlan, n_pages: int, n_slots: int, max_rows: int) -> MemoryPlan:
    """What a model needs with so many KV pages, recurrent state slots and rows in a chunk."""
    weights = sum(F32_BYTES * _product(weight.shape) for weight in plan.weights.values())
    row_bytes = 2 * len(plan.kv.layers) * plan.kv.n_heads * plan.kv.d_head * F32_BYTES
    scratch = max_rows * F32_BYTES * sum(_product(c) for c in plan.schedule.buffers.values())
    slot_bytes = F32_BYTES * sum(_product(shape) for shape in plan.states.values())
    kv = n_pages * PAGE_TOKENS * row_bytes
    return MemoryPlan(weights, kv, n_slots * slot_bytes, scratch)


def check_fits(needs: MemoryPlan, device: Device) -> None:
    """Raise RuntimeFailure with the arithmetic when the device has less free than needed."""
    try:
        free = device.memory_info().free_bytes
    except DeviceError as error:
        raise RuntimeFailure(f"context: {error}") from None
    if needs.total_bytes > free:
        raise RuntimeFailure(
            f"context: needs {_gib(needs.total_bytes)} GiB (weights {_gib(needs.weights_bytes)}, "
            f"KV {_gib(needs.kv_bytes)}, state {_gib(needs.state_bytes)}, "
            f"scratch {_gib(needs.scratch_bytes)}), {_gib(free)} free on {device.name}"
        )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f}"
