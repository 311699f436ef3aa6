"""Owns `python -m engine.parity`."""

import sys

from engine.parity.command import main

if __name__ == "__main__":
    sys.exit(main())
