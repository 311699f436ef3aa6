"""Owns what llama.cpp's own benchmark says of a GGUF of the same shapes, run beside ours.

It is a program of its own, named by its path, and no part of the product. What it prints is checked
value by value; that it is missing, crashes, hangs or prints something else is a row that says so.
"""

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import RuntimeFailure

NAME = "llama-bench"
PROMPTS, N_DECODE, LAYERS = "512,2048", 128, 99
MAX_OUTPUT_BYTES, MAX_ROWS, MAX_COUNT = 16 << 20, 1000, 1 << 32
# Of its standard error: what may say why it ended.
TAIL_BYTES = 2000
KILL_WAIT_S = 10.0


def command_of(binary: Path, gguf: Path, depths: Sequence[int]) -> list[str]:
    """Its command line; with depths, every test is run behind as many tokens."""
    command = [
        str(binary), "-m", str(gguf), "-p", PROMPTS, "-n", str(N_DECODE), "-ngl", str(LAYERS),
        "-fa", "1", "-o", "json",
    ]
    return command + (["-d", ",".join(map(str, depths))] if depths else [])


def measure(
    binary: Path, gguf: Path, depths: Sequence[int], timeout_s: float
) -> dict[str, Any]:
    """What it measured, {peer, seconds, results}; RuntimeFailure says why there is nothing.

    Each result is {n_prompt, n_gen, n_depth, tokens_per_s, stddev, build, model, card}.
    """
    started = time.perf_counter()
    text = _printed(command_of(binary, gguf, depths), timeout_s)
    results = parse(text)
    return {"peer": NAME, "seconds": time.perf_counter() - started, "results": results}


def _printed(command: Sequence[str], timeout_s: float) -> str:
    """What a command prints; it is ended, with what it started, after so many seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            raise RuntimeFailure(f"{NAME}: cannot be started: {error.strerror}") from None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise RuntimeFailure(
                f"{NAME}: not done after {timeout_s:g} s, which is the limit{_said(err)}"
            ) from None
        except BaseException:
            _end(process)
            raise
        if status:
            raise RuntimeFailure(f"{NAME}: ended with {status}, 0 is needed{_said(err)}")
        n_bytes = out.seek(0, os.SEEK_END)
        if n_bytes > MAX_OUTPUT_BYTES:
            raise RuntimeFailure(f"{NAME}: printed {n_bytes} bytes, at most {MAX_OUTPUT_BYTES}")
        out.seek(0)
        return out.read().decode("utf-8", "replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it and what it started; its group is its own, and it was not waited for yet."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeFailure(f"{NAME}: process {process.pid} cannot be ended") from None


def _said(err: BinaryIO) -> str:
    """The last line of its standard error, for a message."""
    n_bytes = err.seek(0, os.SEEK_END)
    err.seek(max(0, n_bytes - TAIL_BYTES))
    lines = err.read().decode("utf-8", "replace").strip().splitlines()
    last = "".join(c for c in lines[-1] if c.isprintable())[:300] if lines else ""
    return f"; it said: {last}" if last else ""


def parse(text: str) -> list[dict[str, Any]]:
    """Its results from what it printed as JSON; RuntimeFailure names the first value that is not
    what it should be."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RuntimeFailure(
            f"{NAME}: {len(text)} characters that are no JSON: {error}"
        ) from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ROWS:
        found = f"{len(rows)} results" if isinstance(rows, list) else type(rows).__name__
        raise RuntimeFailure(f"{NAME}: printed {found}, a list of 1 to {MAX_ROWS} is needed")
    return [_result(index, row) for index, row in enumerate(rows)]


def _result(index: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise RuntimeFailure(
            f"{NAME}: result {index} is {type(row).__name__}, an object is needed"
        )
    found: dict[str, Any] = {
        name: _count(index, row, name) for name in ("n_prompt", "n_gen", "n_depth")
    }
    rate = _rate(index, row, "avg_ts", None)
    if rate <= 0:
        raise RuntimeFailure(f"{NAME}: result {index}: avg_ts is {rate}, above 0 is needed")
    texts = {"build": "build_commit", "model": "model_type", "card": "gpu_info"}
    return {
        **found, "tokens_per_s": rate, "stddev": _rate(index, row, "stddev_ts", 0.0),
        **{name: str(row.get(key, ""))[:200] for name, key in texts.items()},
    }


def _count(index: int, row: dict[str, Any], name: str) -> int:
    """A count of tokens; older versions have no depth."""
    value = row.get(name, 0 if name == "n_depth" else None)
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise RuntimeFailure(
            f"{NAME}: result {index}: {name} is {value!r}, a number from 0 to {MAX_COUNT} is needed"
        )
    return value


def _rate(index: int, row: dict[str, Any], name: str, absent: float | None) -> float:
    value: Any = row.get(name, absent)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise RuntimeFailure(
            f"{NAME}: result {index}: {name} is {value!r}, a finite number from 0 on is needed"
        )
    return float(value)
