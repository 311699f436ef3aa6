"""Owns the types of tool parameters: from a JSON schema to a type table, from text to a JSON value.

Knows nothing of tags or calls. The tag form of tool calls carries no types, so the schema decides.
Rules:
- Where the schema allows a string the text stays as written; `null` and `None` are null where the
  schema allows null as well.
- Otherwise the first of boolean, integer, number, array, object, null that the text fits wins.
  Numbers are JSON literals: `5.0` and `1e2` fit integer, `02134` fits nothing.
- A capital first letter, Python's way, is accepted for true, false and none.
- Text that fits no allowed type stays a string, and so does a parameter that the schema does not
  know or gives no type.
"""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from engine.chat.json_text import check_text, write_json
from engine.errors import Unsupported

JSON_TYPES = ("boolean", "integer", "number", "array", "object", "null", "string")

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_MAX_INTEGER_DIGITS = 300
_MAX_REFERENCES = 16
# A Python bool is an int, so it has to be asked for first.
_KINDS = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def parameter_types(schema: dict[str, Any]) -> dict[str, list[str]]:
    """The allowed JSON types of each declared parameter, in the order of JSON_TYPES."""
    properties = _resolved(schema, schema).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _types(part, schema) for name, part in properties.items()}


def typed_json(text: str, types: list[str]) -> str:
    """The JSON text of a parameter's value; never fails, a string is always possible."""
    if "string" in types:
        is_null = "null" in types and text.strip() in ("null", "None")
        return "null" if is_null else write_json(text)
    for name in types:
        value = _READERS[name](text.strip())
        if value is not None:
            return value
    return write_json(text)


def _types(schema: Any, root: dict[str, Any]) -> list[str]:
    found: set[str] = set()
    pending, seen = [schema], set[int]()
    while pending:
        part = _resolved(pending.pop(), root)
        # A schema may contain itself by reference; each of its parts is looked at once.
        if id(part) in seen:
            continue
        seen.add(id(part))
        found.update(_own_types(part))
        for key in ("anyOf", "oneOf", "allOf"):
            options = part.get(key)
            pending += options if isinstance(options, list) else []
    return [name for name in JSON_TYPES if name in found]


def _own_types(part: dict[str, Any]) -> list[str]:
    declared = part.get("type")
    if declared is None:
        values = [part["const"]] if "const" in part else part.get("enum")
        names = [_type_of(value) for value in values] if isinstance(values, list) else []
    else:
        names = [name for name in JSON_TYPES if name == declared or name in _listed(declared)]
    return [*names, "null"] if part.get("nullable") is True else names


def _listed(declared: Any) -> list[Any]:
    return declared if isinstance(declared, list) else []


def _resolved(part: Any, root: dict[str, Any]) -> dict[str, Any]:
    for _ in range(_MAX_REFERENCES):
        reference = part.get("$ref") if isinstance(part, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        part = root
        for step in reference[2:].split("/"):
            part = part.get(step) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _type_of(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def _boolean(text: str) -> str | None:
    return text.lower() if text in ("true", "false", "True", "False") else None


def _null(text: str) -> str | None:
    return "null" if text in ("null", "None") else None


def _integer(text: str) -> str | None:
    if _NUMBER.fullmatch(text) is None or len(text) > _MAX_INTEGER_DIGITS:
        return None
    # Decimal, because 1e20 and 30 digits are exact in it and not in a double.
    exact = Decimal(text)
    if abs(exact.adjusted()) > _MAX_INTEGER_DIGITS or exact != int(exact):
        return None
    return str(int(exact))


def _number(text: str) -> str | None:
    return text if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else None


def _collection(kind: type) -> Callable[[str], str | None]:
    def read(text: str) -> str | None:
        try:
            value = json.loads(
                text, parse_int=str, parse_float=_finite, parse_constant=_not_a_number
            )
            check_text(value, "parameter")
        except (ValueError, RecursionError, Unsupported):
            # How deep Python reads depends on its version; check_text sets the limit.
            return None
        return text if isinstance(value, kind) else None

    return read


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(digits)
    return float(digits)


def _not_a_number(word: str) -> None:
    raise ValueError(word)


_READERS: dict[str, Callable[[str], str | None]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _collection(list),
    "object": _collection(dict),
    "null": _null,
}
