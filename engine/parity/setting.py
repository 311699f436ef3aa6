"""Owns what a comparison is about: options, device, plan, the ids and layers that are compared.

It must not know either side's runs.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bench_model.load import plan_of
from engine.devices import DEVICE_NAMES, EMULATOR_VARIABLE, find
from engine.parity import ours, texts
from engine.parity.records import Report
from engine.records import ModelPlan
from ptx.device import Device

BF16 = "bf16"
PEERS = ("auto", "transformers", "oracle")
# The id streams of `texts`: that of the compared sequence.
COMPARED = 500


@dataclass
class Setting:
    """One comparison; `kept` are the keys of its traces, `report` is filled as it goes on."""

    options: argparse.Namespace
    device: Device
    plan: ModelPlan
    ids: list[int]
    kept: list[int]
    report: Report

    def config_json(self) -> Mapping[str, Any]:
        """The config.json of the package's dims."""
        name, _, twin = self.options.package.partition(":")
        dims = importlib.import_module(f"packages.{name}").PACKAGE.dims[twin]
        stated = importlib.import_module(f"packages.{name}.stated")
        document: Mapping[str, Any] = stated.config_json(dims)
        return document

    def told(self, what: str) -> "Told":
        """A context that times a part of the comparison."""
        return Told(self.report, what)


class Told:
    """A context that says on standard error how long a part took, and keeps it in the report."""

    def __init__(self, report: Report, what: str) -> None:
        """Of a part's name."""
        self._report, self._what = report, what

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._started
        self._report["seconds"][self._what] = round(seconds, 2)
        print(f"{seconds:8.1f} s  {self._what}", file=sys.stderr, flush=True)


def prepare(options: argparse.Namespace) -> Setting:
    """Device and plan; EngineError for what there is not."""
    if options.device == "emulator":
        os.environ[EMULATOR_VARIABLE] = "1"
    entry = find(DEVICE_NAMES[options.device])
    device: Device = ours.ReferenceHost() if options.device == "host" else entry.device
    plan = plan_of(options.package, options.recipe, options.model)
    report: Report = {
        "package": options.package, "recipe": options.recipe, "device": entry.description,
        "weights": plan.display_path, "peer": None, "not_run": [], "seconds": {},
    }
    ids = texts.random_ids(options.compare_tokens, plan.n_vocab, COMPARED)
    return Setting(options, device, plan, ids, kept_of(options.layers, plan.n_layers), report)


def kept_of(count: int | None, n_layers: int) -> list[int]:
    """Keys of a trace: what goes into this many layers and comes out of them. They are spread
    evenly, the last among them."""
    count = n_layers if count is None else max(1, min(count, n_layers))
    behind = {(index + 1) * n_layers // count for index in range(count)}
    return sorted({0, *behind, *(key - 1 for key in behind)})


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return int(text)

    return number


def parser() -> argparse.ArgumentParser:
    """The options; defaults are what the package promises."""
    made = argparse.ArgumentParser(prog="engine.parity", description="Judge a compiled model.")
    made.add_argument("--package", default="qwen3_8_27b", help="package or package:twin")
    made.add_argument("--recipe", default=BF16, help="bf16, groupwise-int, ...")
    made.add_argument("--model", type=Path, help="artifact (default: random weights)")
    made.add_argument("--bf16-model", type=Path, help="the same weights in bf16, for the NLL")
    made.add_argument("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    made.add_argument("--peer", choices=PEERS, default="auto",
                      help="auto: transformers, and where it is not the oracle for small models")
    made.add_argument("--compare-tokens", type=_at_least(1), default=256,
                      help="of layers and logits")
    made.add_argument("--layers", type=_at_least(1), help="how many to compare (default: all)")
    made.add_argument("--prompts", type=_at_least(0), default=8)
    made.add_argument("--tokens", type=_at_least(1), default=128, help="ids behind each prompt")
    made.add_argument("--nll-windows", type=_at_least(0), default=4, help="0: none")
    made.add_argument("--nll-tokens", type=_at_least(2), default=2048)
    made.add_argument("--json", type=Path, help="write the report here")
    made.add_argument("--markdown", type=Path, help="write it as text here")
    return made
