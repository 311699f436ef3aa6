"""Owns the benchmark of a whole model: load, memory, prompts, decoding by context, batches.

    python -m engine.bench model --package qwen3_8_27b --recipe groupwise-int --json FILE

Weights are random, made on the device, unless --model names an artifact. Every figure is a median
over steps after the first two of their shape, which load kernels and record the graph. `device_ms`
is a step's time by events on the device, where it has them; the rest of a step is the host's. Not a
test: figures go to KNOWLEDGE with their card.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.compiled.program import CompiledProgram
from engine.devices import find
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from engine.session import Session

DEVICE_NAMES = {"host": "CPU", "cuda": "CUDA0", "emulator": "EMULATOR"}
WARM_STEPS = 2
CONTEXTS, PROMPTS, BATCHES = "0,2048,8192", "512,2048,8192", "1,2,4,8,16"


def prompt_of(n_tokens: int, n_vocab: int, shift: int = 0) -> list[int]:
    """Ids without a pattern that a kernel could like."""
    return [(17 + 7919 * (i + shift)) % n_vocab for i in range(n_tokens)]


def prefill(model: Model, n_tokens: int) -> dict[str, float]:
    """Two prompts of that many tokens; the second is timed."""
    times = []
    for turn in range(2):
        session = model.create_session()
        ids = prompt_of(n_tokens, model.plan.n_vocab, turn)
        started = time.perf_counter()
        session.prefill_sampled(ids, None)
        times.append(time.perf_counter() - started)
        session.free()
    return {"n_tokens": n_tokens, "first_s": times[0], "tokens_per_s": n_tokens / times[1]}


def decode(model: Model, n_context: int, n_steps: int, n_batch: int = 1) -> dict[str, float]:
    """Steps of `n_batch` sessions that each have `n_context` tokens and one more."""
    sessions = [model.create_session() for _ in range(n_batch)]
    for index, session in enumerate(sessions):
        session.prefill(prompt_of(n_context + 1, model.plan.n_vocab, index))
    tokens = prompt_of(n_batch, model.plan.n_vocab)
    times = []
    for _ in range(WARM_STEPS + n_steps):
        started = time.perf_counter()
        tokens = _step(model, sessions, tokens)
        times.append(time.perf_counter() - started)
    step_s = statistics.median(times[WARM_STEPS:])
    found = {
        "n_context": n_context, "n_batch": n_batch, "step_ms": 1e3 * step_s,
        "tokens_per_s": n_batch / step_s,
    }
    if isinstance(model.program, CompiledProgram):
        device_ms = model.program.time_pass(n_batch, n_batch)
        found |= {} if device_ms is None else {
            "device_ms": device_ms, "host_us_per_token": 1e3 * (1e3 * step_s - device_ms) / n_batch
        }
    for session in sessions:
        session.free()
    return found


def _step(model: Model, sessions: Sequence[Session], tokens: list[int]) -> list[int]:
    if len(sessions) == 1:
        return [sessions[0].decode(tokens[0], None)]
    return model.decode_batch(sessions, tokens, [None] * len(sessions))


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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as JSON takes it; what is measured is told on standard error as it comes."""
    entry = find(DEVICE_NAMES[options.device])
    free = entry.memory_info().free_bytes
    started = time.perf_counter()
    plan = plan_of(options.package, options.recipe, options.model)
    planned_s = time.perf_counter() - started
    runtime = RuntimeOptions(
        n_context=options.cells, n_lanes=max(options.batches), n_batch=2048, include_output=True
    )
    model = Model(plan, runtime, entry.device)
    entry.device.synchronize()
    report: dict[str, Any] = {
        "package": options.package, "recipe": options.recipe, "device": entry.description,
        "plan_s": planned_s, "load_s": time.perf_counter() - started - planned_s,
        "taken_bytes": free - entry.memory_info().free_bytes,
        "prefill": [], "decode": [], "batch": [],
    }
    for n_tokens in options.prompts:
        _told(report["prefill"], prefill(model, n_tokens))
    for n_context in options.contexts:
        _told(report["decode"], decode(model, n_context, options.steps))
    for n_batch in options.batches:
        _told(report["batch"], decode(model, 64, options.steps, n_batch))
    report["taken_at_end_bytes"] = free - entry.memory_info().free_bytes
    model.close()
    return report


def _told(rows: list[dict[str, float]], row: dict[str, float]) -> None:
    rows.append(row)
    print(json.dumps({key: round(value, 3) for key, value in row.items()}), file=sys.stderr)


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str]) -> int:
    """Measure and print the report as JSON."""
    parser = argparse.ArgumentParser(prog="engine.bench model", description="Measure a model.")
    parser.add_argument("--package", default="qwen3_8_27b")
    parser.add_argument("--recipe", default="groupwise-int")
    parser.add_argument("--model", type=Path, help="artifact (default: random weights)")
    parser.add_argument("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    parser.add_argument("--cells", type=int, default=16384, help="KV cells of all sessions")
    parser.add_argument("--contexts", type=_counts, default=_counts(CONTEXTS))
    parser.add_argument("--prompts", type=_counts, default=_counts(PROMPTS))
    parser.add_argument("--batches", type=_counts, default=_counts(BATCHES))
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the report here too")
    options = parser.parse_args(arguments)
    text = json.dumps(measure(options), indent=1)
    print(text)
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    return 0
