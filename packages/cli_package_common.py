"""Owns what the `mesh-specialize package` commands share: exit codes, errors, ranges, output.

0 says valid or done, 1 not valid, 2 wrong usage or a machine that refuses; 130 an interrupt. With
`--json` standard output is one JSON document, also for a failure; without it, text. Progress bars
and reasons are on standard error.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from packages.layer_package.checks import Scope
from packages.layer_package.digests import Progress
from packages.layer_package.errors import (
    CacheError,
    Cancelled,
    Issue,
    PackageError,
    RefError,
    Report,
    SelectionError,
    TransferError,
    WriterError,
)
from packages.layer_package.hub_fetch import fetch_from_hub
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.resolve import resolve_package
from packages.layer_package.selection import StageRequest, even_ranges
from skippy_abi import table

VALID, NOT_VALID, USAGE = 0, 1, 2
# What is wrong with the call or the machine, and not with the package.
_USAGE = (RefError, SelectionError, WriterError, CacheError, TransferError, Cancelled)
_LAYERS = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
Command = Callable[[argparse.Namespace], int]


def guarded(command: Command) -> Command:
    """The command with its errors as exit codes."""

    def run(options: argparse.Namespace) -> int:
        try:
            return command(options)
        except PackageError as error:
            is_usage = isinstance(error, _USAGE) or error.kind == "artifact_unreadable"
            return _failed(options, error.issue, USAGE if is_usage else NOT_VALID)
        except (EngineError, OSError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return _failed(options, Issue("io_failure", text), USAGE)

    return run


def _failed(options: argparse.Namespace, issue: Issue, code: int) -> int:
    if options.json:
        print(json.dumps({"valid": False, "error": issue.as_json()}, ensure_ascii=False, indent=1))
    else:
        say(issue)
    return code


def say(issue: Issue) -> None:
    """An issue as a line on standard error, its hint as another."""
    where = issue.artifact or issue.pointer
    place = f"{where}: " if where else ""
    print(f"{issue.severity}: {issue.kind}: {place}{issue.message}", file=sys.stderr)
    if issue.hint:
        print(f"  hint: {issue.hint}", file=sys.stderr)


def emit(options: argparse.Namespace, document: Any, lines: Sequence[str]) -> None:
    """The command's answer: JSON or lines."""
    if options.json:
        print(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        print("\n".join(lines))


def add_package(parser: argparse.ArgumentParser) -> None:
    """The arguments by which a package is named and found, and `--json`."""
    parser.add_argument(
        "package", metavar="PACKAGE", help="a folder, or hf://namespace/repo[@revision]"
    )
    add_cache(parser)
    parser.add_argument("--offline", action="store_true", help="download nothing")


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Where the hub's cache is, and `--json`."""
    parser.add_argument("--cache", type=Path, metavar="DIR", help="root of the hub's cache")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_stage(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose a stage."""
    parser.add_argument("--layers", type=layers, metavar="START:END", help="half-open range")
    parser.add_argument("--stages", type=int, metavar="N", help="an even split into N stages ...")
    parser.add_argument("--stage", type=int, metavar="I", help="... and which of them, from 0")


def layers(text: str) -> tuple[int, int]:
    """A range `START:END`; argparse's error for anything else."""
    found = _LAYERS.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not START:END, e.g. 0:12")
    return int(found[1]), int(found[2])


def stage_of(options: argparse.Namespace, layer_count: int) -> StageRequest:
    """The stage that the arguments ask for; all layers without any."""
    is_split = options.stages is not None or options.stage is not None
    if options.layers is not None and is_split:
        raise SelectionError("two_stage_choices", "--layers and --stages exclude each other")
    if options.layers is not None:
        return StageRequest(*options.layers)
    if not is_split:
        return StageRequest(0, layer_count)
    if options.stages is None or options.stage is None:
        raise SelectionError("incomplete_stage_choice", "--stages and --stage come together")
    ranges = even_ranges(layer_count, options.stages)
    if not 0 <= options.stage < len(ranges):
        raise SelectionError(
            "stage_out_of_range", f"stage {options.stage} of {len(ranges)}, counted from 0"
        )
    chosen = ranges[options.stage]
    return StageRequest(chosen.start, chosen.stop)


def stages_of(options: argparse.Namespace, layer_count: int) -> list[StageRequest]:
    """Every stage that the arguments ask for: all of a split when none of it is named."""
    if options.stages is not None and options.stage is None and options.layers is None:
        ranges = even_ranges(layer_count, options.stages)
        return [StageRequest(layers.start, layers.stop) for layers in ranges]
    return [stage_of(options, layer_count)]


def resolved(
    options: argparse.Namespace,
    scope: Scope,
    *,
    stage: StageRequest | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
) -> PackageDir:
    """The package that the arguments name, with the files of the scope here."""
    return resolve_package(
        options.package, scope=scope, stage=stage, offline=options.offline or None,
        cache=options.cache, fetch=fetch_from_hub, runtime_abi=runtime_abi(), progress=progress,
        report=report,
    )  # fmt: skip


def runtime_abi() -> str:
    """The ABI of this runtime."""
    return ".".join(map(str, table.load().version))
