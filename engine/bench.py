"""Owns the benchmark command: how fast a package decodes on a device, and what memory it takes.

    python -m engine.bench decode --package smollm2_135m --device host [--model FILE]
    python -m engine.bench decode --package qwen3_8_27b:tiny --device host
    python -m engine.bench model                     # whole models: engine/bench_model/command.py
    python -m engine.bench endurance                 # mixed requests: engine/bench_endurance/
    python -m engine.bench ops                       # tuned kernels: engine/bench_ops/command.py

A twin has no artifact of its own: it runs on random weights of its shapes.

Not a test: figures go to KNOWLEDGE with the machine they were taken on. The plan comes from T3 by
import at run time, since a benchmark is a program and not part of the engine.
"""

import argparse
import importlib
import json
import resource
import statistics
import sys
import time
from pathlib import Path

from engine.bench_endurance.command import main as bench_endurance
from engine.bench_model.command import main as bench_model
from engine.bench_ops.command import main as bench_ops
from engine.devices import DEVICE_NAMES, find
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan


def decode(model: Model, n_prompt_tokens: int, n_decode_tokens: int) -> dict[str, float]:
    """Prefill and decode of pseudo-random ids: tokens/s and the median step in ms."""
    n_vocab = model.plan.n_vocab
    prompt = [(17 + 7919 * i) % n_vocab for i in range(n_prompt_tokens)]
    session = model.create_session()
    started = time.perf_counter()
    token = session.prefill_sampled(prompt, None)
    prefill_s = time.perf_counter() - started
    steps = []
    for _ in range(n_decode_tokens):
        started = time.perf_counter()
        token = session.decode(token, None)
        steps.append(time.perf_counter() - started)
    session.free()
    return {
        "prefill_tokens_per_s": n_prompt_tokens / prefill_s,
        "decode_tokens_per_s": n_decode_tokens / sum(steps),
        "decode_median_ms": 1e3 * statistics.median(steps),
        "max_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _plan(package: str, path: Path | None) -> ModelPlan:
    """The plan of a file, of the package's own artifact, or of random weights for a twin."""
    if ":" in package:
        plan: ModelPlan = importlib.import_module("packages.synthetic").synthetic_plan(package)
        return plan
    found = path or importlib.import_module(f"packages.{package}.fetch").locate()
    opened: ModelPlan = importlib.import_module("packages.select").open_plan([str(found).encode()])
    return opened


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; `decode` prints its figures as JSON, the others have their own options."""
    given = sys.argv[1:] if arguments is None else arguments
    own = {"ops": bench_ops, "model": bench_model, "endurance": bench_endurance}
    if given and given[0] in own:
        return own[given[0]](given[1:])
    parser = argparse.ArgumentParser(prog="engine.bench", description="Measure a package.")
    parser.add_argument("what", choices=["decode", *own])
    parser.add_argument("--package", default="smollm2_135m")
    parser.add_argument("--device", choices=sorted(DEVICE_NAMES), default="host")
    parser.add_argument("--model", type=Path, help="artifact (default: the package's own fetch)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--decode-tokens", type=int, default=64)
    options = parser.parse_args(given)
    if options.what != "decode":
        parser.error(f"{options.what} comes first, before its own options")
    started = time.perf_counter()
    plan = _plan(options.package, options.model)
    entry = find(DEVICE_NAMES[options.device])
    model = Model(plan, RuntimeOptions(n_context=2048, n_batch=2048), entry.device)
    figures = {"open_s": time.perf_counter() - started}
    figures.update(decode(model, options.prompt_tokens, options.decode_tokens))
    report = {"package": options.package, "device": entry.description, **figures}
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
