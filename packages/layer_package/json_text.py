"""Owns strict JSON: what a manifest's bytes may be, and the bytes that a writer makes of one.

It must not know any member. What has two readings is refused (duplicate members, NaN, infinities,
lone surrogates, a byte order mark), and what would cost too much is refused before it is built.
Strings are looked over without recursion, and the parser never sees more than 64 levels.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ManifestError

MAX_DEPTH = 64
# Brackets, commas and colons outside strings. A manifest of 16 MiB made of real entries has half as
# many; 16 MiB of "[]," would become half a gigabyte of lists.
MAX_TOKENS = 2 << 20
# Python turns no more digits into a number and back whatever its limits are set to.
MAX_DIGITS = 640

# A string, and what is up to the next one. A quote always matches, also where its string does not
# end: a search that may fail there would begin again at every escaped quote, in quadratic time.
_RUN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?([^"]*+)|([^"]++)', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 80


def parse_json(data: bytes) -> Any:
    """The value of one JSON text in UTF-8; objects are dicts in file order, integers are ints.

    ManifestError `invalid_manifest_json`: not UTF-8, a byte order mark, no JSON, anything behind
    it, more than 64 levels, `MAX_TOKENS` or `MAX_DIGITS`, a member given twice, NaN or an infinity
    (also as a number too large for a double), a lone surrogate.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        _refuse("begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        _refuse(f"is not UTF-8 at byte {e.start}: {e.reason}")
    _check_structure(data)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as e:
        _refuse(f"is not JSON: {e.msg} at line {e.lineno} column {e.colno}")
    if _SURROGATE_ESCAPE.search(data) is not None:
        _check_surrogates(value)
    return value


def json_bytes(value: object) -> bytes:
    """The text that a writer makes: UTF-8, two spaces, a final newline; members in their order."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def escape_pointer(name: str | int) -> str:
    """A member's name or an index as a step of a JSON pointer (RFC 6901)."""
    return str(name).replace("~", "~0").replace("/", "~1")


def _refuse(why: str) -> NoReturn:
    raise ManifestError("invalid_manifest_json", f"the text {why}")


def _check_structure(data: bytes) -> None:
    """Depth and number of values, before anything is built and in no memory of its own."""
    depth = n_tokens = n_strings = 0
    for run in _RUN.finditer(data):
        bare = run[1] if run[2] is None else run[2]
        n_strings += run[2] is None
        n_tokens += sum(map(bare.count, (b"[", b"{", b",", b":")))
        if n_tokens > MAX_TOKENS:
            _refuse(f"holds more than {MAX_TOKENS} brackets, commas and colons")
        if n_strings > n_tokens + 2:
            _refuse("is not JSON: it holds strings with nothing between them")
        for bracket in bare.translate(None, _NOT_BRACKETS):
            depth += _STEP[bracket]
            if not 0 <= depth <= MAX_DEPTH:
                why = f"nests more than {MAX_DEPTH} levels deep" if depth > 0 else (
                    "is not JSON: it closes more than it opens")  # fmt: skip
                _refuse(why)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse(f"gives the member {printable(name, _SHOWN)} twice")
            seen.add(name)
    return made


def _integer(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _float(digits: str) -> float:
    _check_digits(digits)
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        _refuse(f"holds {digits[:_SHOWN]}, which is too large for a double")
    return value


def _check_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        _refuse(f"holds a number of {len(digits)} characters, at most {MAX_DIGITS} are read")


def _constant(name: str) -> NoReturn:
    _refuse(f"holds {name}, which is not JSON")


def _check_surrogates(value: object) -> None:
    for text in _strings(value):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            _refuse(f"holds a lone surrogate in {printable(text, _SHOWN)}")


def _strings(value: object) -> Iterator[str]:
    """Every string, member names too."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            left += item.values()
        elif isinstance(item, list):
            left += item


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
