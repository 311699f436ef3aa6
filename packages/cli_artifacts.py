"""Owns the commands of `mesh-specialize` that make and look at artifacts: convert, inspect."""

import argparse
import json
from pathlib import Path
from typing import Any

from packages import recipes
from packages.convert import convert
from packages.inspect import inspect
from packages.progress_bar import Bar


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
    with Bar() as bar:
        report = convert(
            options.source, options.target, package=options.package, recipe=options.recipe,
            progress=bar.show, model_id=options.model_id,
        )
    print("\n".join(report.lines()))
    return 0


def _inspect(options: argparse.Namespace) -> int:
    report = inspect(options.path, verify=options.verify)
    if options.json:
        print(json.dumps(report.facts, ensure_ascii=False, indent=1))
    else:
        print("\n".join(report.lines))
    return 0 if report.facts.get("ok", True) else 1
