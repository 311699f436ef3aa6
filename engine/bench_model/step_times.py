"""Owns the time of a pass on a device, whole and by op: captured graphs, replayed between events.

The launches of one label run in the order of the pass, one graph for each label; so weights go
through the cache by turns as they do in a pass. What is small enough to stay in the cache when it
alone runs again (gains, gates, KV rows of a short context) is read from there, and launches of a
pass may overlap where their kernels allow it: the parts are no more than near the step. It must
not know sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.bench_model.step_bytes import Shape, groups_of, label_of, total
from engine.bench_ops.timing import Effort, captured, time_launches, time_replays
from engine.compiled.program import CompiledProgram
from engine.compiled.records import CompiledStep
from engine.model import Model
from ptx.devices.launch_checks import checked_dims
from ptx.op import pick

EFFORT = Effort(11, 2.0, 1.0)
Launches = Sequence[tuple[CompiledStep, dict[str, Any]]]


@dataclass(frozen=True)
class Part:
    """Microseconds of all launches of a label, and which kernels ran."""

    us: float
    kernels: tuple[str, ...]


def launches_of(model: Model, device: Any, shape: Shape) -> Launches | None:
    """The bound launches of a pass; None where they cannot be timed."""
    if not isinstance(model.program, CompiledProgram) or not hasattr(device, "capture"):
        return None
    return model.program.launches(shape.n_rows, shape.n_sequences)


def whole_us(device: Any, launches: Launches) -> float:
    """Microseconds of a pass with its head, as one graph; what kernels it needs is loaded first."""
    calls = [partial(device.launch, step.op, **args) for step, args in launches]
    for call in calls:
        call()
    return time_replays(device, captured(device, calls), 1, EFFORT).median


def parts_of(device: Any, launches: Launches) -> dict[str, Part]:
    """The time of each label's launches."""
    by_label: dict[str, list[tuple[CompiledStep, dict[str, Any]]]] = {}
    for step, args in launches:
        by_label.setdefault(label_of(step), []).append((step, args))
    found = {}
    for label, group in by_label.items():
        calls = [partial(device.launch, step.op, **args) for step, args in group]
        kernels = dict.fromkeys(_kernel(device, step, args) for step, args in group)
        us = time_launches(device, calls, EFFORT).median * len(calls)
        found[label] = Part(us, tuple(kernels))
    return found


def _kernel(device: Any, step: CompiledStep, args: dict[str, Any]) -> str:
    return pick(step.op, device.target, checked_dims(step.op, args)).stem


def step_row(model: Model, device: Any, shape: Shape, label: str) -> dict[str, Any]:
    """The table of one pass, as JSON takes it; times are null where the device cannot capture.

    The pass is the one that ran last, of exactly this shape.
    """
    groups = groups_of(model.plan, shape)
    launches = launches_of(model, device, shape)
    step_us = whole_us(device, launches) if launches else None
    parts = parts_of(device, launches) if launches else {}
    whole = total(groups.values())
    ops = []
    for name, group in groups.items():
        part = parts.get(name)
        ops.append({
            "op": name, "launches": group.n_launches, "us": part and part.us,
            "share": part and step_us and part.us / step_us,
            "weights_bytes": group.moved.weights, "kv_bytes": group.moved.kv,
            "state_bytes": group.moved.state, "written_bytes": group.moved.written,
            "read_rate": part and 1e6 * group.moved.read / part.us,
            "kernels": list(part.kernels) if part else [],
        })
    return {
        "shape": label, "n_rows": shape.n_rows, "n_sequences": shape.n_sequences,
        "n_cells": shape.n_cells, "read_bytes": whole.read, "written_bytes": whole.written,
        "step_us": step_us, "sum_us": sum(part.us for part in parts.values()) if parts else None,
        "ops": ops,
    }
