"""Owns the self-test of a device: facts, kernels, models, determinism, memory, in one report.

    python -m engine.selftest [--device cuda|emulator|host] [--json FILE]

What each kernel must compute is in its op's folder; the judge of a model is the host device, whose
judge is the oracle (tests). Kernels are judged by their own tests, each launch also replayed from a
captured graph, and a card by the tests in `tests/gpu` where that folder is; pytest must be there,
and without it those parts say that they did not run, and the self-test fails.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.chunks import Work
from engine.devices import DEVICE_NAMES, EMULATOR_VARIABLE, DeviceEntry, find
from engine.errors import EngineError, ModelError
from engine.evaluate import evaluate
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from ptx.device import Device
from ptx.devices import nvml
from ptx.op import PtxError

# Which tests a device runs: those of the fixture parameter of its name.
MARKS = {"cuda": "gpu", "emulator": "not gpu", "host": "not gpu"}
ROOT = Path(__file__).resolve().parents[1]
CARD_TESTS = ROOT / "tests" / "gpu"
TWINS = ("smollm2_135m:tiny", "qwen3_8_27b:tiny")
PROMPT = [5, 17, 42, 99, 7, 200, 31]
N_GREEDY = {"cuda": 32, "host": 32, "emulator": 3}
N_GREEDY_SMOLLM2 = {"cuda": 64, "host": 64, "emulator": 2}
N_REPEATS = {"cuda": 100, "host": 100, "emulator": 3}
# Processes that run kernel tests beside each other, where pytest-xdist is there.
MAX_WORKERS = 16
# What allocators keep for themselves.
MEMORY_SLACK_BYTES = 64 << 20


class NotRun(Exception):
    """A part cannot run here for a reason that is no fault of the device."""


@dataclass
class Result:
    """One line of the report; `passed` is None for a part that did not run."""

    name: str
    passed: bool | None
    detail: str
    seconds: float


def run_all(device_name: str, with_kernels: bool = True) -> list[Result]:
    """Every part of the self-test on one kind of device, in order."""
    entry = find(DEVICE_NAMES[device_name])
    parts: list[tuple[str, Callable[[], str]]] = [("facts", lambda: facts(entry))]
    if with_kernels:
        parts.append(("kernels", lambda: tested(ROOT / "ptx", device_name)))
        if device_name == "cuda" and CARD_TESTS.is_dir():
            parts.append(("the card", lambda: tested(CARD_TESTS, device_name)))
    for twin in TWINS:
        parts.append((f"greedy ids, {twin}", partial(greedy, entry, device_name, twin)))
        parts.append((f"repeats, {twin}", partial(repeats, entry, device_name, twin)))
    parts.append(("greedy ids, smollm2_135m", lambda: greedy_smollm2(entry, device_name)))
    parts.append(("memory", lambda: memory(entry.device)))
    return [_timed(name, part) for name, part in parts]


def _timed(name: str, part: Callable[[], str]) -> Result:
    """Run a part; an assertion or refusal is its failure."""
    started = time.perf_counter()
    passed: bool | None = True
    try:
        detail = part()
    except NotRun as reason:
        detail, passed = str(reason), None
    except (AssertionError, RuntimeError, OSError, EngineError, PtxError) as error:
        detail, passed = f"{type(error).__name__}: {error}", False
    return Result(name, passed, detail, time.perf_counter() - started)


def facts(entry: DeviceEntry) -> str:
    """What the device is, on what."""
    info = entry.device.memory_info()
    known = nvml.read_facts() if entry.is_gpu else None
    driver = f", driver {known.driver}" if known else ""
    return (
        f"{entry.name}: {entry.description}{driver}; "
        f"{info.free_bytes / 2**30:.1f} of {info.total_bytes / 2**30:.1f} GiB free; "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )


def tested(folder: Path, device_name: str) -> str:
    """The tests of a folder that the device can run."""
    try:
        pytest = importlib.import_module("pytest")
    except ImportError as error:
        raise AssertionError(f"did not run: {error}") from None
    counted = _Counts()
    arguments = ["-q", "-p", "no:cacheprovider", "-m", MARKS[device_name],
                 "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), str(folder)]
    # Kernels are also run on the emulator beside a card, which takes a processor each.
    if folder.name == "ptx" and importlib.util.find_spec("xdist") and not _is_worker():
        arguments += ["-n", str(min(MAX_WORKERS, os.cpu_count() or 1))]
    status = pytest.main(arguments, plugins=[counted])
    assert status == 0, f"pytest ended with {status}: {'; '.join(counted.failed[:5])}"
    return f"{counted.n_passed} passed, {counted.n_skipped} skipped"


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


class _Counts:
    """A pytest plugin that counts outcomes and keeps the names of failures."""

    def __init__(self) -> None:
        self.n_passed = self.n_skipped = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count one phase of one test."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.n_skipped += 1
        elif report.when == "call":
            self.n_passed += 1


def _open(plan: ModelPlan, device: Device) -> Model:
    options = RuntimeOptions(n_context=256, n_lanes=2, n_batch=64, include_output=True)
    return Model(plan, options, device)


def _ids(plan: ModelPlan, device: Device, n_tokens: int) -> list[int]:
    model = _open(plan, device)
    session = model.create_session()
    tokens = [session.prefill_sampled(PROMPT, None)]
    for _ in range(n_tokens):
        tokens.append(session.decode(tokens[-1], None))
    model.close()
    return tokens


def greedy(entry: DeviceEntry, device_name: str, twin: str) -> str:
    """A twin's greedy ids equal the host device's."""
    plan = importlib.import_module("packages.synthetic").synthetic_plan(twin)
    n_tokens = N_GREEDY[device_name]
    wanted, found = _ids(plan, find("CPU").device, n_tokens), _ids(plan, entry.device, n_tokens)
    assert found == wanted, f"ids {found}, the host device has {wanted}"
    return f"{len(found)} ids equal, {len(set(found))} different ones"


def greedy_smollm2(entry: DeviceEntry, device_name: str) -> str:
    """The real model's greedy ids equal the host device's, where its file is at hand."""
    fetch = importlib.import_module("packages.smollm2_135m.fetch")
    try:
        path = fetch.locate(download=False)
    except ModelError as error:
        raise NotRun(str(error)) from None
    plan = importlib.import_module("packages.select").open_plan([str(path).encode()])
    n_tokens = N_GREEDY_SMOLLM2[device_name]
    wanted, found = _ids(plan, find("CPU").device, n_tokens), _ids(plan, entry.device, n_tokens)
    assert found == wanted, f"ids {found}, the host device has {wanted}"
    return f"{len(found)} ids equal: {plan.tokenizer.decode(found[:12])!r}..."


def repeats(entry: DeviceEntry, device_name: str, twin: str) -> str:
    """The same pass gives the same bits every time."""
    plan = importlib.import_module("packages.synthetic").synthetic_plan(twin)
    model = _open(plan, entry.device)
    first: bytes | None = None
    for index in range(N_REPEATS[device_name]):
        session = model.create_session()
        evaluation = evaluate(model, [Work(session, PROMPT, "all")])
        bits = evaluation.rows[0].tobytes()
        evaluation.roll_back()
        session.free()
        assert first in (None, bits), f"pass {index} has other bits than the first"
        first = bits
    model.close()
    return f"{N_REPEATS[device_name]} passes, equal bits"


def memory(device: Device) -> str:
    """Opening and closing a model gives its memory back."""
    plan = importlib.import_module("packages.synthetic").synthetic_plan(TWINS[1])
    _open(plan, device).close()
    before = device.memory_info().free_bytes
    for _ in range(5):
        _open(plan, device).close()
    lost = before - device.memory_info().free_bytes
    if device.kind == "gpu":
        assert lost <= MEMORY_SLACK_BYTES, f"{lost} bytes less free after 5 models"
    return f"{lost} bytes less free after 5 models"


def main(arguments: list[str] | None = None) -> int:
    """Run and print the report; 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="engine.selftest", description="Self-test of a device.")
    parser.add_argument("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    parser.add_argument("--json", type=Path, help="write the report here too")
    parser.add_argument("--no-kernels", action="store_true", help="models only")
    options = parser.parse_args(arguments)
    if options.device == "emulator":
        os.environ[EMULATOR_VARIABLE] = "1"
    results = run_all(options.device, with_kernels=not options.no_kernels)
    for result in results:
        mark = {True: "ok", False: "FAILED", None: "not run"}[result.passed]
        print(f"{mark:7}  {result.name:34} {result.seconds:8.2f} s  {result.detail}")
    if options.json:
        report = {"device": options.device, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=1))
    return 1 if any(result.passed is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
