"""Owns the table of tool-call formats, and reading one call in each of them.

Knows nothing of reasoning, of streams or of templates. Both formats wrap a call in OPENER and
CLOSER and differ in the body: `hermes` holds one JSON object, `qwen-xml` tags without types.

A reader gets the text and the position after OPENER and answers with the call, UNFINISHED (it may
still become one) or MALFORMED (it never will). Both answers stay right when the text grows.

Rules for tags inside parameter text (`qwen-xml`). A closing tag ends the value only where, white
space apart, the next structural tag follows it: another parameter tag, or `</function>` that is
itself followed by CLOSER, by OPENER or by the end of a finished text. A parameter without closing
tag ends at a parameter tag that begins a line, or at `</function>` with CLOSER behind it.
Everything else is the value's own text. One newline after the opening tag and one before the
closing tag belong to the format; they are CRLF only if the opening one is.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.chat.json_scan import STRING, Broken, scan_object, skip_space
from engine.chat.json_text import check_text, write_json
from engine.chat.typed_values import typed_json

OPENER = "<tool_call>"
CLOSER = "</tool_call>"

Types = Mapping[str, Mapping[str, list[str]]]


@dataclass(frozen=True)
class Call:
    """One complete call: its name, its arguments as JSON text, and where the text goes on."""

    name: str
    arguments: str
    end: int


@dataclass(frozen=True)
class ToolFormat:
    """A row of the table.

    `chat_format` is the number in the metadata, `shown` finds the format in a rendered call,
    `read(text, position, is_final, types)` reads one call.
    """

    chat_format: int
    shown: re.Pattern[str]
    read: Callable[[str, int, bool, Types], Call | Broken]


_CONTROL = re.compile(r"[\x00-\x1f]")
_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_SPACE = r"[ \t\r\n]*"
_FUNCTION_END = rf"</function>{_SPACE}(?:{CLOSER}|(?={OPENER}))"
_FUNCTION_END_FINAL = rf"</function>{_SPACE}(?:{CLOSER}|(?={OPENER})|\Z)"
_VALUE_END = (
    rf"</parameter>{_SPACE}(?=<parameter=[^<>\n]+>|%s)"
    rf"|(?<=\n)(?=<parameter=[^<>\n]+>)|(?=</function>{_SPACE}{CLOSER})"
)
_ENDS = {
    is_final: (re.compile(function_end), re.compile(_VALUE_END % function_end))
    for is_final, function_end in ((False, _FUNCTION_END), (True, _FUNCTION_END_FINAL))
}


def read_hermes(text: str, position: int, is_final: bool, types: Types) -> Call | Broken:
    """One JSON object with `name` and `arguments`; the arguments' text is kept as written.

    Arguments may be missing or null (no arguments) or the text of an object. Raises Unsupported
    when name or arguments hold an unpaired surrogate.
    """
    scanned = scan_object(text, skip_space(text, position))
    if isinstance(scanned, Broken):
        return scanned
    end = _closed(text, scanned.end, is_final)
    members = {_decoded(key): value for key, value in scanned.members.items()}
    name = _decoded(members.get("name", "null"))
    arguments = _object_text(members.get("arguments", "{}"))
    if isinstance(end, Broken) or not isinstance(name, str) or not name or arguments is None:
        return end if end is Broken.UNFINISHED else Broken.MALFORMED
    check_text(name, "tool call: name")
    return Call(name, arguments, end)


def read_qwen_xml(text: str, position: int, is_final: bool, types: Types) -> Call | Broken:
    """A function tag with parameter tags, values typed by the tool's schema."""
    opened = _tag(_FUNCTION, "<function=", text, skip_space(text, position))
    if isinstance(opened, Broken):
        return opened
    name = opened.group(1).strip()
    known = types.get(name, {})
    function_end, value_end = _ENDS[is_final]
    values: dict[str, str] = {}
    position = skip_space(text, opened.end())
    while not (done := function_end.match(text, position)):
        tag = _tag(_PARAMETER, "<parameter=", text, position)
        if isinstance(tag, Broken):
            return Broken.UNFINISHED if _may_end(text, position) else tag
        ended = value_end.search(text, tag.end())
        if ended is None:
            return Broken.UNFINISHED
        key = tag.group(1).strip()
        values[key] = typed_json(_unframed(text[tag.end() : ended.start()]), known.get(key, []))
        position = skip_space(text, ended.end())
    arguments = ",".join(f"{write_json(key)}:{value}" for key, value in values.items())
    return Call(name, f"{{{arguments}}}", done.end())


FORMATS: dict[str, ToolFormat] = {
    "qwen-xml": ToolFormat(
        2, re.compile(rf"{OPENER}{_SPACE}<function=[^<>\n]+>{_SPACE}<parameter="), read_qwen_xml
    ),
    "hermes": ToolFormat(1, re.compile(rf'{OPENER}{_SPACE}\{{{_SPACE}"name"'), read_hermes),
}


def _closed(text: str, position: int, is_final: bool) -> int | Broken:
    """Where the text goes on after a call's body, if its end is well marked."""
    position = skip_space(text, position)
    rest = text[position : position + len(CLOSER)]
    if rest == CLOSER:
        return position + len(CLOSER)
    if rest.startswith(OPENER) or (not rest and is_final):
        return position
    growing = position + len(rest) == len(text) and (
        CLOSER.startswith(rest) or OPENER.startswith(rest)
    )
    return Broken.UNFINISHED if growing else Broken.MALFORMED


def _decoded(raw: str) -> object:
    try:
        # Numbers stay text: their value does not matter here and may not fit Python's limits.
        return json.loads(raw, strict=False, parse_int=str, parse_float=str)
    except ValueError:
        return None


def _object_text(raw: str) -> str | None:
    value = _decoded(raw)
    if isinstance(value, str):
        inner = scan_object(value, skip_space(value, 0))
        if isinstance(inner, Broken) or skip_space(value, inner.end) != len(value):
            return None
        raw, value = value.strip(), _decoded(value)
    if raw == "null":
        return "{}"
    if not isinstance(value, dict):
        return None
    check_text(value, "tool call: arguments")
    # Models break lines inside strings; JSON wants that escaped.
    return STRING.sub(lambda match: _CONTROL.sub(_escaped, match.group()), raw)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def _tag(pattern: re.Pattern[str], start: str, text: str, position: int) -> re.Match[str] | Broken:
    """The tag at `position`, or whether one can still appear there."""
    match = pattern.match(text, position)
    if match is not None:
        return match
    rest = text[position : position + len(start)]
    if len(rest) < len(start):
        return Broken.UNFINISHED if start.startswith(rest) else Broken.MALFORMED
    is_name = rest == start and not re.search(r"[<>\n]", text[position + len(start) :])
    return Broken.UNFINISHED if is_name else Broken.MALFORMED


def _may_end(text: str, position: int) -> bool:
    """Whether the text from `position` on is the beginning of a function's end."""
    tag = "</function>"
    if not text.startswith(tag, position):
        return tag.startswith(text[position:])
    rest = text[skip_space(text, position + len(tag)) :]
    return CLOSER.startswith(rest) or OPENER.startswith(rest)


def _unframed(value: str) -> str:
    newline = "\r\n" if value.startswith("\r\n") else "\n"
    return value.removeprefix(newline).removesuffix(newline)
