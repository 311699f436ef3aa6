"""Owns one run of a model's benchmark: which rows are still to measure, in which order, and that
one which fails does not take the others with it.

Ceiling first, then the model and its phases, then the peer, for which the model's memory is free
again. It must not know how a figure is taken nor how a report is shown.
"""

import argparse
import gc
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.bench_model import peer
from engine.bench_model.load import facts_of, memory_row, open_model, plan_of
from engine.bench_model.passes import (
    BATCH_CONTEXT,
    WARM_STEPS,
    decode,
    decode_table,
    prefill,
    prompt_table,
    sessions_of,
)
from engine.bench_model.record import Record
from engine.bench_ops.ceilings import measure_reads
from engine.bench_ops.timing import QUICK
from engine.devices import DEVICE_NAMES, DeviceEntry, find
from engine.errors import EngineError
from engine.kv_cache import PAGE_TOKENS
from engine.model import Model
from engine.options import RuntimeOptions
from ptx.devices import nvml
from ptx.op import PtxError

CHUNK = 2048
Row = dict[str, Any]
Phases = Callable[[str, Mapping[Any, Callable[[], Row]]], None]


def identity_of(options: argparse.Namespace, entry: DeviceEntry) -> Row:
    """What two runs of one report must have in common."""
    path = options.model
    return {
        "package": None if path else options.package,
        "recipe": None if path else options.recipe,
        "artifact": path and path.name,
        "artifact_bytes": path and (path.stat().st_size if path.is_file() else 0),
        "device": entry.description, "is_card": options.device == "cuda", "steps": options.steps,
    }


def measure(options: argparse.Namespace, record: Record, command: str) -> None:
    """Everything that `options.phases` asks for and the record lacks."""
    entry = find(DEVICE_NAMES[options.device])
    known = nvml.read_facts() if options.device == "cuda" else None
    ours = [phase for phase in options.phases if phase != "peer"]
    info = entry.memory_info()
    record.begin({
        "command": command, "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "driver": known and known.driver, "python": platform.python_version(),
        "read_rate": _read_rate(entry) if ours else None,
        "card_used_bytes": info.total_bytes - info.free_bytes,
    })
    if ours:
        _attempt(record, "load", None, lambda: _ours(options, record, entry))
        gc.collect()
    if "peer" in options.phases and not record.has("peer", peer.NAME):
        _attempt(record, "peer", peer.NAME, partial(
            _kept, record, "peer",
            partial(peer.measure, options.peer_bench, options.peer_model, options.peer_depths,
                    options.peer_timeout),
        ))


def _read_rate(entry: DeviceEntry) -> float | None:
    """Bytes in a second of the largest run of pure reads; None where nothing can be captured."""
    device: Any = entry.device
    if not hasattr(device, "capture"):
        return None
    try:
        reads = measure_reads(device, QUICK)
    except PtxError as error:
        print(f"no read ceiling: {error}", file=sys.stderr)
        return None
    return reads[0].rate if reads else None


def cells_for(options: argparse.Namespace) -> int:
    """KV cells that the asked phases need, all sessions of the largest together."""
    more = 1 + WARM_STEPS + options.steps
    needs: dict[str, list[int]] = {
        "prefill": options.prompts, "decode": [n + more for n in options.contexts],
        "batch": [n * (BATCH_CONTEXT + more) for n in options.batches],
        "steps": [n * (at + 2) for n, at in options.tables] + [options.table_prompt],
    }
    most = max((n for phase in options.phases for n in needs.get(phase, [])), default=1)
    return -(-most // PAGE_TOKENS) * PAGE_TOKENS


def lanes_for(options: argparse.Namespace) -> int:
    """Sessions that the asked phases have at once."""
    needs = {"batch": options.batches, "steps": [n for n, _ in options.tables]}
    return max((n for phase in options.phases for n in needs.get(phase, [])), default=1)


def _ours(options: argparse.Namespace, record: Record, entry: DeviceEntry) -> None:
    """Open the model and run its phases; its memory is free again afterwards."""
    free_before = entry.memory_info().free_bytes
    runtime = RuntimeOptions(
        n_context=options.cells or cells_for(options), n_lanes=lanes_for(options), n_batch=CHUNK,
        include_output=True,
    )
    model, loaded = open_model(
        partial(plan_of, options.package, options.recipe, options.model), options.model, runtime,
        entry,
    )

    def measured(phase: str, calls: Mapping[Any, Callable[[], Row]]) -> None:
        for key, call in calls.items():
            if phase in options.phases and not record.has(phase, key):
                _attempt(record, phase, key, partial(_kept, record, phase, call))
                _note_memory(record, free_before - entry.memory_info().free_bytes)

    try:
        record.data["model"] = facts_of(model.plan)
        record.data["memory"].append({
            **memory_row(model, free_before, entry.memory_info().free_bytes),
            "run": len(record.data["runs"]) - 1,
        })
        record.save()
        if "load" in options.phases and not record.has("load", loaded["source"]):
            _told("load", loaded)
            record.add("load", loaded)
        _phases(options, model, entry.device, measured)
    finally:
        model.close()


def _phases(options: argparse.Namespace, model: Model, device: Any, measured: Phases) -> None:
    """Hand every phase's rows to `measured`, each by its key."""
    steps, chunk = options.steps, min(options.table_prompt, model.program.max_rows)
    measured("prefill", {n: partial(prefill, model, n) for n in options.prompts})
    # One session grows through all contexts, so that no prompt is run twice.
    with sessions_of(model, 1) as held:
        measured("decode", {
            n: partial(decode, model, device, held, n, steps) for n in sorted(options.contexts)
        })
    measured("batch", {n: partial(_batch, model, device, n, steps) for n in options.batches})
    measured("steps", {
        f"{n}@{at}": partial(decode_table, model, device, n, at) for n, at in options.tables
    } | ({f"prompt@{chunk}": partial(prompt_table, model, device, chunk)} if chunk else {}))


def _batch(model: Model, device: Any, n_batch: int, n_steps: int) -> Row:
    with sessions_of(model, n_batch) as sessions:
        return decode(model, device, sessions, BATCH_CONTEXT, n_steps)


def _note_memory(record: Record, taken: int) -> None:
    """The most that was taken so far, and what of it is beyond weights and state."""
    row = record.data["memory"][-1]
    row["most_bytes"] = max(row["most_bytes"], taken)
    row["beyond_bytes"] = row["most_bytes"] - row["weights_bytes"] - row["state_bytes"]
    record.save()


def _kept(record: Record, phase: str, call: Callable[[], Row]) -> None:
    row = call()
    _told(phase, row)
    record.add(phase, row)


def _attempt(record: Record, phase: str, key: Any, call: Callable[[], None]) -> None:
    """Run it; what refuses is entered, and the run goes on."""
    try:
        call()
    except (EngineError, PtxError) as error:
        record.fail(phase, key, f"{type(error).__name__}: {error}")
        print(f"{phase} {key}: {error}", file=sys.stderr)


def _told(phase: str, row: Row) -> None:
    """One line on standard error: the run may be ended before its report is written."""
    shown = {
        key: round(value, 3) if isinstance(value, float) and math.isfinite(value) else value
        for key, value in row.items() if not isinstance(value, list)
    }
    print(phase, json.dumps(shown), file=sys.stderr, flush=True)
