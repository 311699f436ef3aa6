"""Owns the command `python -m engine.bench endurance`: mixed requests for as long as is asked.

    python -m engine.bench endurance --package qwen3_8_27b --minutes 30 [--state FILE]
    python -m engine.bench endurance --package qwen3_8_27b:mini --device host --cycles 3

Every cycle carries out the same requests: prompts, batches, verified windows that are cut, seeded
sampling, sessions that are emptied, prefixes. Outputs must be those of the first cycle bit for bit,
and nothing may grow after the warm-up beyond `growth.LIMITS`. --state keeps outputs and counts in a
file; with one that is there the run goes on. 1 when something failed, in this process or before.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bench_endurance.growth import LIMITS
from engine.bench_endurance.requests import KINDS, Request, cells_for, mixed
from engine.bench_endurance.run import WARM_CYCLES, endure
from engine.bench_endurance.state import State
from engine.bench_model.load import plan_of
from engine.devices import DEVICE_NAMES, EMULATOR_VARIABLE, DeviceEntry, find
from engine.errors import EngineError
from engine.model import Model
from engine.options import RuntimeOptions
from ptx.op import PtxError

N_REQUESTS, MAX_PROMPT, N_STEPS, MAX_BATCH = 3 * len(KINDS), 4096, 32, 8


def main(arguments: Sequence[str]) -> int:
    """Run and print the report; 1 when something failed, 2 for what cannot be begun."""
    options = _parser().parse_args(arguments)
    if options.device == "emulator":
        os.environ[EMULATOR_VARIABLE] = "1"
    requests = mixed(
        options.seed, options.requests, options.max_prompt, options.steps, options.max_batch
    )
    try:
        entry = find(DEVICE_NAMES[options.device])
        state = State(options.state, identity_of(options, entry))
        # What cannot be written is known before hours are spent.
        state.save()
        model = _open(options, entry)
    except (EngineError, PtxError) as error:
        print(error, file=sys.stderr)
        return 2
    info = entry.memory_info if entry.is_gpu else None
    try:
        grown = endure(
            model, requests, state, 60 * options.minutes, options.cycles, info, options.warm_cycles
        )
    finally:
        model.close()
    print(report_text(requests, state.data, grown))
    return 1 if state.data["n_failures"] else 0


def identity_of(options: argparse.Namespace, entry: DeviceEntry) -> dict[str, Any]:
    """What every process of one run must have in common."""
    return {
        "package": None if options.model else options.package,
        "recipe": None if options.model else options.recipe,
        "artifact": options.model and options.model.name, "device": entry.description,
        "seed": options.seed, "requests": options.requests, "max_prompt": options.max_prompt,
        "steps": options.steps, "max_batch": options.max_batch,
    }


def _open(options: argparse.Namespace, entry: DeviceEntry) -> Model:
    # One lane more: in every other cycle somebody else holds one.
    n_lanes = options.max_batch + 1
    runtime = RuntimeOptions(
        n_context=cells_for(options.max_prompt, options.steps, n_lanes), n_lanes=n_lanes,
        n_batch=options.max_prompt, include_output=True,
    )
    plan = plan_of(options.package, options.recipe, options.model)
    return Model(plan, runtime, entry.device)


def report_text(
    requests: Sequence[Request], data: Mapping[str, Any], grown: Mapping[str, int]
) -> str:
    """What all processes of the run have found, as Markdown."""
    identity = data["identity"]
    weights = identity["artifact"] or (
        f"{identity['package']} with random weights by {identity['recipe']}"
    )
    lines = [
        f"# Endurance of {weights} on {identity['device']}", "",
        f"{data['cycles']} cycles of {len(requests)} requests in {data['seconds'] / 60:.1f} "
        f"minutes (processes: {data['processes']}): {data['requests']:,} requests, "
        f"{data['tokens']:,} tokens; {data['n_failures']} failures.", "",
        "| counted | grown since the warm-up of this process | at most |", "|---|---|---|",
        *(f"| {name} | {grown[name]} | {LIMITS[name]} |" for name in grown), "",
        *(f"- {sentence}" for sentence in data["failures"]),
    ]
    return "\n".join(lines).rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="engine.bench endurance", description="Mixed requests, again and again."
    )
    add = parser.add_argument
    add("--package", default="qwen3_8_27b")
    add("--recipe", default="groupwise-int", help="forms of random weights")
    add("--model", type=Path, help="artifact (default: random weights)")
    add("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    add("--minutes", type=float, default=30.0, help="of this process")
    add("--cycles", type=int, default=0, help="so many instead")
    add("--warm-cycles", type=_at_least(1), default=WARM_CYCLES)
    add("--state", type=Path, help="keep what is known here, and go on from it")
    add("--seed", type=int, default=0)
    add("--requests", type=_at_least(1), default=N_REQUESTS, help="of a cycle")
    add("--max-prompt", type=_at_least(1), default=MAX_PROMPT)
    add("--steps", type=_at_least(1), default=N_STEPS, help="tokens decoded behind a prompt")
    add("--max-batch", type=_at_least(2), default=MAX_BATCH, help="sessions of a batch")
    return parser


def _at_least(least: int) -> Any:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text}: at least {least} is needed")
        return value

    return parse
