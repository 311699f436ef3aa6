"""Owns reading a JSON object off the front of a text that may still be growing.

Knows nothing of tool calls. Python's reader cannot tell an object that is broken from one that is
not finished, and a stream needs exactly that: what is called broken stays broken whatever follows,
what is called unfinished may still become an object.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from engine.chat.json_text import MAX_DEPTH


class Broken(Enum):
    """Why there is no object (yet)."""

    UNFINISHED = auto()
    MALFORMED = auto()


@dataclass(frozen=True)
class ScannedObject:
    """Where the object ends, and the raw text of each member's value by its raw key text."""

    end: int
    members: dict[str, str]


_SPACE = re.compile(r"[ \t\r\n]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ATOM = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

# What may come next: a kind of token for each situation. "v" stands for any start of a value.
_AFTER_OPEN = {"{": "s}", "[": "v]"}
_AFTER_VALUE = {"{": ",}", "[": ",]"}
_AFTER_COMMA = {"{": "s", "[": "v"}


def skip_space(text: str, position: int) -> int:
    """The first position from `position` on that holds no JSON white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def scan_object(text: str, start: int) -> ScannedObject | Broken:
    """The object that begins at `start`. What strings hold is not judged, only where they end."""
    if start >= len(text):
        return Broken.UNFINISHED
    if text[start] != "{":
        return Broken.MALFORMED
    return _Scan(text, start).run()


class _Scan:
    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._position = start + 1
        self._open = ["{"]
        self._expected = _AFTER_OPEN["{"]
        self._members: dict[str, str] = {}
        self._key = ""
        self._value_start = 0

    def run(self) -> ScannedObject | Broken:
        while self._open:
            self._position = skip_space(self._text, self._position)
            if self._position >= len(self._text):
                return Broken.UNFINISHED
            broken = self._token()
            if broken is not None:
                return broken
        return ScannedObject(self._position, self._members)

    def _token(self) -> Broken | None:
        mark = self._text[self._position]
        if mark == '"':
            return self._string()
        if mark in "{[" and "v" in self._expected:
            self._begin_value()
            self._open.append(mark)
            self._expected = _AFTER_OPEN[mark]
        elif mark in "}]" and mark in self._expected:
            self._open.pop()
            self._position += 1
            self._end_value()
            return None
        elif mark == "," and mark in self._expected:
            self._expected = _AFTER_COMMA[self._open[-1]]
        elif mark == ":" and mark in self._expected:
            self._expected = "v"
        else:
            return self._atom()
        self._position += 1
        return Broken.MALFORMED if len(self._open) > MAX_DEPTH else None

    def _string(self) -> Broken | None:
        is_key = "s" in self._expected
        if not is_key and "v" not in self._expected:
            return Broken.MALFORMED
        match = STRING.match(self._text, self._position)
        if match is None:
            return Broken.UNFINISHED
        if is_key:
            if len(self._open) == 1:
                self._key = match.group()
            self._expected = ":"
            self._position = match.end()
            return None
        self._begin_value()
        self._position = match.end()
        self._end_value()
        return None

    def _atom(self) -> Broken | None:
        match = _ATOM.match(self._text, self._position)
        if match is None or "v" not in self._expected:
            return Broken.MALFORMED
        if match.end() == len(self._text):
            return Broken.UNFINISHED
        if _SCALAR.fullmatch(match.group()) is None:
            return Broken.MALFORMED
        self._begin_value()
        self._position = match.end()
        self._end_value()
        return None

    def _begin_value(self) -> None:
        if len(self._open) == 1:
            self._value_start = self._position

    def _end_value(self) -> None:
        if len(self._open) == 1:
            self._members[self._key] = self._text[self._value_start : self._position]
        if self._open:
            self._expected = _AFTER_VALUE[self._open[-1]]
