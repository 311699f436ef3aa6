"""Owns how a person's `--temperature` and `--seed` texts become numbers, before anything is loaded.

Knows no command line and no sampler. A text that means something else than it says (a nonzero
temperature that rounds to 0, a seed with a sign) is refused, never bent.
"""

import math
import re

from engine.errors import InvalidArgument

_DECIMAL = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_SEED_DIGITS = 20


def parse_temperature(text: str) -> float:
    """Finite temperature >= 0 of a decimal literal; every spelling of zero gives 0.0 (greedy).

    InvalidArgument: not a decimal number; negative and not zero; overflow; nonzero digits that
    underflow to 0.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"temperature {_shown(text)} is not a decimal number")
    sign, mantissa = match.groups()
    # The digits decide, not the value: -1e-400 is negative although it rounds to zero.
    if not mantissa.strip("0."):
        return 0.0
    if sign == "-":
        raise InvalidArgument(f"temperature {_shown(text)} is negative, needs at least 0")
    value = float(text)
    if value == 0.0 or math.isinf(value):
        raise InvalidArgument(f"temperature {_shown(text)} does not fit a 64-bit float")
    return value


def parse_seed(text: str) -> int:
    """Seed 0 .. 2^64 - 1 of unsigned decimal digits; InvalidArgument for any other text."""
    digits = text.lstrip("0")
    plain = text.isascii() and text.isdigit()
    if not plain or len(digits) > _SEED_DIGITS or int(digits or "0") >= 1 << 64:
        raise InvalidArgument(f"seed {_shown(text)} is not a decimal number from 0 to 2^64 - 1")
    return int(digits or "0")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "...")
