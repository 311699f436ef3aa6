"""Owns the commands of `mesh-specialize` that make and look at artifacts: convert, inspect."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from packages import recipes
from packages.convert import convert
from packages.inspect import inspect

BAR_COLUMNS = 40


def add(commands: Any) -> None:
    """Add the commands to an argument parser's subcommands."""
    made = commands.add_parser("convert", help="write a .mspec from a checkpoint or a GGUF")
    made.add_argument("source", type=Path, metavar="SRC", help="checkpoint folder or GGUF file")
    made.add_argument("target", type=Path, metavar="DST", help="the .mspec to write")
    made.add_argument("--package", default="qwen3_8_27b", help="package key, `:twin` for a twin")
    made.add_argument("--recipe", choices=sorted(recipes.RECIPES), default="groupwise-int")
    made.add_argument("--model-id", help="default: the package's own")
    made.set_defaults(run=_convert)
    seen = commands.add_parser("inspect", help="print an artifact's identity, recipe and sizes")
    seen.add_argument("path", type=Path, metavar="FILE")
    seen.add_argument("--verify", action="store_true", help="check every digest")
    seen.add_argument("--json", action="store_true")
    seen.set_defaults(run=_inspect)


def _convert(options: argparse.Namespace) -> int:
    report = convert(
        options.source, options.target, package=options.package, recipe=options.recipe,
        progress=_Bar().show, model_id=options.model_id,
    )
    print(file=sys.stderr)
    print("\n".join(report.lines()))
    return 0


class _Bar:
    """A bar on standard error that rewrites its own line, once for each per mille."""

    def __init__(self) -> None:
        self._shown = -1

    def show(self, done: int, total: int) -> None:
        """Bytes done and in all."""
        step = 1000 * done // max(total, 1)
        if step == self._shown:
            return
        self._shown = step
        filled = BAR_COLUMNS * step // 1000
        bar = "#" * filled + "." * (BAR_COLUMNS - filled)
        print(f"\r[{bar}] {done / 1e6:.0f} of {total / 1e6:.0f} MB", end="", file=sys.stderr)


def _inspect(options: argparse.Namespace) -> int:
    report = inspect(options.path, verify=options.verify)
    if options.json:
        print(json.dumps(report.facts, ensure_ascii=False, indent=1))
    else:
        print("\n".join(report.lines))
    return 0 if report.facts.get("ok", True) else 1
