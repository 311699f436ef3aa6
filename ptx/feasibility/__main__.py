"""Owns the command: `python -m ptx.feasibility [--device emulator|cuda] [--write]`.

It prints the record, with --write it stores it. The emulator's run assembles too, where there is a
ptxas; a card's run keeps what the other wrote, and the other way round. Exit code 1 for a row that
failed, or without a card.
"""

import argparse
import sys

from ptx.devices.cuda import CudaDevice, available
from ptx.feasibility import record


def main(arguments: list[str]) -> int:
    """Run, print, and store if asked."""
    parser = argparse.ArgumentParser(prog="python -m ptx.feasibility")
    parser.add_argument("--device", choices=("emulator", "cuda"), default="emulator")
    parser.add_argument("--write", action="store_true", help="store the record in KNOWLEDGE")
    given = parser.parse_args(arguments)
    if given.device == "cuda":
        found = available()
        if isinstance(found, str):
            print(f"no card: {found}", file=sys.stderr)
            return 1
        text = record.table(card=CudaDevice(), say=_say)
    else:
        if not record.can_assemble():
            print("no ptxas: registers stay as they were", file=sys.stderr)
        text = record.table(record.can_assemble(), emulates=True, say=_say)
    print(text, end="")
    if given.write:
        record.TABLE.write_text(text, encoding="utf-8")
    return int(record.FAILED in text)


def _say(text: str) -> None:
    """Which row is measured now, so that one that never ends is known."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
