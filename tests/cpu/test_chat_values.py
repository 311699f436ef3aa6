"""Values of tagged calls, typed by the tool's schema, through template, metadata and parser."""

import json
from typing import Any

import pytest

from engine.chat import parse_response
from tests.cpu.chat_cases import OFF, XML, metadata, tool

DIGITS = "123456789012345678901234567890"
SCHEMAS: dict[str, Any] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "array": {"type": "array"},
    "object": {"type": "object"},
    "null or string": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "null or integer": {"type": ["integer", "null"]},
}
TEXTS = ["02134", "true", "1e5", "null", "None", "5.0", "True", "[1,2]", '{"a":1}', "maybe", DIGITS]


def read(text: str, schema: Any, name: str = "value", **fields: Any) -> Any:
    """The value that a call's parameter `name` gets under a schema for `value`."""
    return read_with(metadata(XML, [tool("f", value=schema)], **OFF, **fields), text, name)


def read_with(meta: str, text: str, name: str = "value") -> Any:
    body = f"<function=f>\n<parameter={name}>\n{text}\n</parameter>\n</function>"
    answer = parse_response(f"<tool_call>\n{body}\n</tool_call>", meta, is_partial=False)
    (call,) = json.loads(answer)["tool_calls"]
    return json.loads(call["function"]["arguments"])[name]


# What fits; every other pair of TEXTS and SCHEMAS stays a string.
FITS: dict[str, dict[str, Any]] = {
    "string": {},
    "integer": {"1e5": 100000, "5.0": 5, DIGITS: int(DIGITS)},
    "number": {"1e5": 1e5, "5.0": 5.0, DIGITS: int(DIGITS)},
    "boolean": {"true": True, "True": True},
    "array": {"[1,2]": [1, 2]},
    "object": {'{"a":1}': {"a": 1}},
    "null or string": {"null": None, "None": None},
    "null or integer": {"null": None, "None": None, "1e5": 100000, "5.0": 5, DIGITS: int(DIGITS)},
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", SCHEMAS)
def test_table(kind: str, text: str) -> None:
    value = read(text, SCHEMAS[kind])
    expected = FITS[kind].get(text, text)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("text", TEXTS)
def test_unknown_or_untyped_parameter_is_a_string(text: str) -> None:
    assert read(text, {"type": "integer"}, name="other") == text
    assert read(text, {}) == text


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"enum": [1, 7]}, 7),
        ("7", {"enum": ["1", "7"]}, "7"),
        ("true", {"const": False}, True),
        ("7", {"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, 7),
        ("7", {"allOf": [{"type": "integer"}, {"minimum": 1}]}, 7),
        ("null", {"type": "integer", "nullable": True}, None),
        ("7", {"type": ["string", "integer"]}, "7"),
        ("7", {"type": "strange"}, "7"),
        ("7", {"type": [{}, 1]}, "7"),
        ("7", {"enum": 5}, "7"),
        ("7", True, "7"),
        ("7", {"anyOf": 1}, "7"),
        (" 7 \n", {"type": "integer"}, 7),
        (" 7 ", {"type": "string"}, " 7 "),
        ("1e400", {"type": "number"}, "1e400"),
        ("1e400", {"type": "integer"}, "1e400"),
        ("1e999999999", {"type": "integer"}, "1e999999999"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("5.5", {"type": "integer"}, "5.5"),
        ("-0.0", {"type": "integer"}, 0),
        ("NaN", {"type": "number"}, "NaN"),
        ("[NaN]", {"type": "array"}, "[NaN]"),
        ("[1e400]", {"type": "array"}, "[1e400]"),
        ("[" * 5000 + "]" * 5000, {"type": "array"}, "[" * 5000 + "]" * 5000),
        ('{"a":1}', {"type": "array"}, '{"a":1}'),
        ('["漢"]', {"type": "array"}, ["漢"]),
    ],
)
def test_schemas_and_texts_of_all_kinds(text: str, schema: Any, value: Any) -> None:
    got = read(text, schema)
    assert (got, type(got)) == (value, type(value))


def test_references_are_followed() -> None:
    function = tool("f")
    function["function"]["parameters"] = {
        "properties": {
            "value": {"$ref": "#/$defs/count"},
            "tree": {"$ref": "#/$defs/tree"},
            "gone": {"$ref": "#/$defs/gone"},
            "loop": {"$ref": "#/$defs/loop"},
        },
        "$defs": {
            "count": {"type": "integer"},
            "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "array"}]},
            "loop": {"$ref": "#/$defs/loop"},
        },
    }
    meta = metadata(XML, [function], **OFF)
    assert read_with(meta, "7") == 7
    assert read_with(meta, "[]", "tree") == []
    assert read_with(meta, "7", "gone") == "7"
    assert read_with(meta, "7", "loop") == "7"


def test_properties_that_are_no_table() -> None:
    function = tool("f")
    function["function"]["parameters"] = {"properties": [1]}
    assert read_with(metadata(XML, [function], **OFF), "7") == "7"


def test_types_belong_to_the_tool_that_is_called() -> None:
    tools = [tool("f", value={"type": "integer"}), tool("g", value={"type": "string"})]
    meta = metadata(XML, tools, **OFF)
    assert read_with(meta, "7") == 7
    body = "<function=g><parameter=value>7</parameter></function>"
    answer = parse_response(f"<tool_call>{body}</tool_call>", meta, is_partial=False)
    assert json.loads(json.loads(answer)["tool_calls"][0]["function"]["arguments"]) == {
        "value": "7"
    }
