"""Owns the command `python -m engine.bench model`: what is measured of a whole model, and told.

    python -m engine.bench model --package qwen3_8_27b --recipe groupwise-int \\
        --json FILE --svg FILE --markdown FILE
    python -m engine.bench model --model FILE.mspec --phases load,decode --resume FILE --json FILE
    python -m engine.bench model --phases peer --peer-bench LLAMA_BENCH --peer-model FILE.gguf

Weights are random, made on the device, unless --model names an artifact. Each row is in --json as
soon as it is there; --resume takes such a file up again and measures what it lacks. Figures go to
KNOWLEDGE with their card; nothing here is a test.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.bench_model.markdown import report_text
from engine.bench_model.record import KEYS, Record
from engine.bench_model.run import identity_of, measure
from engine.bench_model.svg import draw
from engine.devices import DEVICE_NAMES, EMULATOR_VARIABLE, find
from engine.errors import EngineError

CONTEXTS, PROMPTS = "0,2048,8192,32768,131072", "512,2048,8192,32768"
BATCHES, TABLES, TABLE_PROMPT = "1,2,4,8,16", "1@0,1@8192,8@64", 2048
PEER_TIMEOUT_S = 300.0


def main(arguments: Sequence[str]) -> int:
    """Measure, print the report as Markdown; 1 when a row failed, 2 for what cannot be begun."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if "peer" in options.phases and not (options.peer_bench and options.peer_model):
        if options.peer_bench or options.peer_model or options.phases == ["peer"]:
            parser.error("the peer needs both --peer-bench and --peer-model")
        options.phases = [phase for phase in options.phases if phase != "peer"]
    for path in filter(None, (options.json, options.markdown, options.svg)):
        if not path.absolute().parent.is_dir():
            parser.error(f"{path.name}: there is no folder {path.parent.name} to write it in")
    if options.device == "emulator":
        os.environ[EMULATOR_VARIABLE] = "1"
    options.json = options.json or options.resume
    try:
        record = Record(options.json, identity_of(options, find(DEVICE_NAMES[options.device])))
        if options.resume:
            record.resume(options.resume)
        if options.phases:
            measure(options, record, shown_command(arguments))
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    text = report_text(record.data)
    print(text)
    for path, content in ((options.markdown, text), (options.svg, draw(record.data))):
        if path:
            path.write_text(content, encoding="utf-8")
    return 1 if options.phases and record.failures() else 0


def shown_command(arguments: Sequence[str]) -> str:
    """The command for a report: of a path its last part, for folders are of one machine."""
    shown = [part.rpartition("/")[2] or part for part in arguments]
    return f"python -m engine.bench model {shlex.join(shown)}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine.bench model", description="Measure a model.")
    add = parser.add_argument
    add("--package", default="qwen3_8_27b")
    add("--recipe", default="groupwise-int", help="forms of random weights")
    add("--model", type=Path, help="artifact (default: random weights)")
    add("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    add("--phases", type=_phases, default=list(KEYS), metavar="A,B,...",
        help=f"of {','.join(KEYS)} (default: all); none: only show --resume")
    add("--cells", type=int, default=0, help="KV cells of all sessions (default: what is needed)")
    add("--contexts", type=_counts, default=_counts(CONTEXTS))
    add("--prompts", type=_counts, default=_counts(PROMPTS))
    add("--batches", type=_counts, default=_counts(BATCHES))
    add("--tables", type=_tables, default=_tables(TABLES), metavar="SESSIONS@CONTEXT,...",
        help="decode steps that are broken up by op")
    add("--table-prompt", type=int, default=TABLE_PROMPT,
        help="rows of the chunk of a prompt that is broken up too; 0 for none")
    add("--steps", type=int, default=32)
    add("--json", type=Path, help="keep the report here, row by row")
    add("--resume", type=Path, help="go on from such a file")
    add("--markdown", type=Path, help="write the report here too")
    add("--svg", type=Path, help="draw it here")
    add("--peer-bench", type=Path, help="llama.cpp's llama-bench")
    add("--peer-model", type=Path, help="a GGUF of the same shapes")
    add("--peer-depths", type=_counts, default=[], help="tokens in front of each of its tests")
    add("--peer-timeout", type=float, default=PEER_TIMEOUT_S, help="seconds")
    return parser


def _counts(text: str) -> list[int]:
    found = [int(part) for part in text.split(",") if part]
    if any(n < 0 for n in found):
        raise argparse.ArgumentTypeError(f"{text}: a count below 0")
    return found


def _tables(text: str) -> list[tuple[int, int]]:
    found = []
    for part in filter(None, text.split(",")):
        n_sessions, at, n_context = part.partition("@")
        if not (at and n_sessions.isdecimal() and n_context.isdecimal() and int(n_sessions)):
            raise argparse.ArgumentTypeError(f"{part}: sessions@context is needed")
        found.append((int(n_sessions), int(n_context)))
    return found


def _phases(text: str) -> list[str]:
    asked = [] if text == "none" else text.split(",")
    for phase in asked:
        if phase not in KEYS:
            raise argparse.ArgumentTypeError(f"{phase}: there are {', '.join(KEYS)}, none")
    return [phase for phase in KEYS if phase in asked]
