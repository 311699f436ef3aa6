"""Owns reading and writing JSON for chat: one strict rule for every text that comes in.

Knows nothing of messages or templates. Python's reader takes more than UTF-8 and JSON allow
(unpaired surrogates, NaN, numbers that overflow) and fails with errors of its own; here all of that
is one `Unsupported` that names the place. Contract: every failure while parsing is UNSUPPORTED.
"""

import json
import math
from typing import Any, NoReturn

from engine.errors import Unsupported

MAX_DEPTH = 200
MAX_DIGITS = 1000

_Place = tuple["_Place | None", str]


def quoted(text: str, limit: int = 60) -> str:
    """`text` as printable ASCII in double quotes, cut to `limit` characters."""
    return json.dumps(text[:limit] + ("..." if len(text) > limit else ""))


def read_json(text: str, place: str) -> Any:
    """The value of a JSON text.

    Refused with `Unsupported`, naming `place` and the path below it: text that is not JSON, numbers
    beyond a double or longer than MAX_DIGITS, NaN and Infinity, nesting deeper than MAX_DEPTH,
    strings with a NUL or with a surrogate that has no partner.
    """
    try:
        value = json.loads(
            text,
            parse_int=lambda digits: _integer(digits, place),
            parse_float=lambda digits: _real(digits, place),
            parse_constant=lambda word: _refuse_number(word, place),
        )
    except json.JSONDecodeError as error:
        raise Unsupported(f"{place}: not JSON at character {error.pos}") from None
    except RecursionError:
        raise Unsupported(f"{place}: nested deeper than {MAX_DEPTH} levels") from None
    check_text(value, place)
    return value


def write_json(value: Any) -> str:
    """Compact JSON in plain UTF-8, keys in the order given."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_text(value: Any, place: str) -> None:
    """Refuses what UTF-8 and C strings cannot carry, wherever it sits inside `value`."""
    pending: list[tuple[Any, _Place, int]] = [(value, (None, place), 0)]
    while pending:
        item, at, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise Unsupported(f"{place}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, str):
            _check_string(item, at)
        elif isinstance(item, list):
            pending += [(entry, (at, f"[{i}]"), depth + 1) for i, entry in enumerate(item)]
        elif isinstance(item, dict):
            for key, entry in item.items():
                below = (at, f".{_key(key)}")
                _check_string(key, below)
                pending.append((entry, below, depth + 1))


def _check_string(text: str, at: _Place) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Unsupported(
                f"{_path(at)}: unpaired surrogate at character {error.start}"
            ) from None
    if "\0" in text:
        raise Unsupported(f"{_path(at)}: NUL at character {text.index(chr(0))}")


def _key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() and len(key) <= 60 else quoted(key)


def _path(at: "_Place | None") -> str:
    parts: list[str] = []
    while at is not None:
        at, part = at
        parts.append(part)
    return "".join(reversed(parts))


def _integer(digits: str, place: str) -> int:
    if len(digits) > MAX_DIGITS:
        _refuse_number(digits, place)
    return int(digits)


def _real(digits: str, place: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse_number(digits, place)
    return value


def _refuse_number(digits: str, place: str) -> NoReturn:
    raise Unsupported(f"{place}: number {digits[:20]} is beyond a double or {MAX_DIGITS} digits")
