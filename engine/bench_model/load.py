"""Owns opening the model that is measured: from a file that the page cache holds, or of random
weights; how long it takes, and what memory it was planned to take and takes.

It must not know passes.
"""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.arena import MemoryPlan, plan_memory
from engine.compiled.program import CompiledProgram
from engine.compiled.program import plan_memory as plan_compiled_memory
from engine.compiled.weights import matrix_bytes
from engine.devices import DeviceEntry
from engine.errors import ModelError
from engine.kv_cache import pages_for
from engine.model import Model
from engine.options import RuntimeOptions
from engine.program import MAX_ROWS
from engine.records import ModelPlan
from engine.recurrent import slots_for

PIECE_BYTES = 16 << 20
PAGE_CACHE, RANDOM = "page cache", "random weights"


def plan_of(package: str, recipe: str, path: Path | None) -> ModelPlan:
    """The plan of a file, or of random weights by a recipe."""
    if path is not None:
        opened: ModelPlan = importlib.import_module("packages.select").open_plan(
            [str(path).encode()]
        )
        return opened
    synthetic = importlib.import_module("packages.synthetic")
    plan: ModelPlan = synthetic.synthetic_plan(package, recipe=recipe)
    return plan


def read_through(path: Path) -> tuple[int, float]:
    """Bytes of a file and seconds of reading all of it, which leaves it in the page cache where
    there is room; ModelError when it cannot be read."""
    started, n_bytes, piece = time.perf_counter(), 0, bytearray(PIECE_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            while n_read := file.readinto(piece):
                n_bytes += n_read
    except OSError as error:
        raise ModelError(f"{path.name}: cannot be read: {error.strerror}") from None
    return n_bytes, time.perf_counter() - started


def open_model(
    make_plan: Callable[[], ModelPlan], path: Path | None, options: RuntimeOptions,
    entry: DeviceEntry,
) -> tuple[Model, dict[str, Any]]:
    """The model on the device, and the row of its load: all that an open takes, digests included.
    """
    n_bytes, read_s = read_through(path) if path else (None, None)
    started = time.perf_counter()
    plan = make_plan()
    plan_s = time.perf_counter() - started
    model = Model(plan, options, entry.device)
    entry.device.synchronize()
    load_s = time.perf_counter() - started
    return model, {
        "source": PAGE_CACHE if path else RANDOM, "file_bytes": n_bytes, "read_s": read_s,
        "plan_s": plan_s, "load_s": load_s,
        "bytes_per_s": (n_bytes or planned(model).weights_bytes) / load_s,
    }


def planned(model: Model) -> MemoryPlan:
    """The plan by which the model was let in."""
    n_pages, n_slots = pages_for(model.options.n_context), slots_for(model.options.n_lanes)
    if isinstance(model.program, CompiledProgram):
        return plan_compiled_memory(model.plan, n_pages, n_slots)
    return plan_memory(model.plan, n_pages, n_slots, MAX_ROWS)


def memory_row(model: Model, free_before: int, free_now: int) -> dict[str, Any]:
    """Planned bytes beside those taken; `beyond_bytes` is what was taken beside weights and state.
    """
    needs, taken = planned(model), free_before - free_now
    return {
        "weights_bytes": needs.weights_bytes, "state_bytes": needs.kv_bytes + needs.state_bytes,
        "scratch_bytes": needs.scratch_bytes, "n_cells": model.options.n_context,
        "n_lanes": model.options.n_lanes, "taken_bytes": taken, "most_bytes": taken,
        "beyond_bytes": taken - needs.weights_bytes - needs.kv_bytes - needs.state_bytes,
    }


def facts_of(plan: ModelPlan) -> dict[str, Any]:
    """Which model it is, and in which forms its matrices lie."""
    forms: dict[str, int] = {}
    for matrix in plan.compiled.matrices.values() if plan.compiled else ():
        n_bytes = matrix_bytes(matrix, plan.weights)
        forms[matrix.form] = forms.get(matrix.form, 0) + n_bytes
    weights = "int4" if "int4_tiles" in forms else "bf16" if forms else "f32"
    return {"model_id": plan.model_id, "weights": weights, "forms": forms}
