"""Builds the two libraries and prints their paths: the engine's first, then the stubs'.

    python build_ffi.py [--out DIR] [--boot MODULE]

Owns the command line and where the output goes. From a checkout that is `build/` beside this
file; from an installed package it is the user's cache folder. Unchanged inputs build nothing.
"""

import argparse
import os
import sys
from pathlib import Path

from abi_stubs import stubs
from engine.errors import EngineError
from skippy_abi import build


def default_out() -> Path:
    """`build/` in a checkout, else a folder in the user's cache named after the Python."""
    here = Path(__file__).resolve().parent
    if (here / "pyproject.toml").is_file():
        return here / "build"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mesh-specialize" / f"{sys.implementation.cache_tag}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the build; 0 when both libraries are there, 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="build_ffi", description="Build the two libraries.")
    parser.add_argument("--out", type=Path, help="folder for the libraries")
    parser.add_argument("--boot", default=build.BOOT, help="module the embedded Python imports")
    options = parser.parse_args(arguments)
    out = options.out or default_out()
    try:
        print(build.build_engine(out, options.boot))
        print(stubs.build(out))
    except (EngineError, OSError) as error:
        print(f"build_ffi: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
