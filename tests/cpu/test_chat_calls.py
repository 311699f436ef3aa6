"""Tool calls in a response, in both formats: well formed, broken, and full of the format's tags."""

from typing import Any

import pytest

from engine.chat import parse_response
from engine.errors import Unsupported
from tests.cpu.chat_cases import (
    FILE_TOOLS,
    HERMES_TOOLS,
    OFF,
    XML,
    XML_DIRECT,
    calls,
    check_all_growth,
    hermes_call,
    metadata,
    parsed,
    xml_call,
)

# Calls as JSON.


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name":"search","arguments":{"query":"</tool_call>"}}', {"query": "</tool_call>"}),
        ('{"arguments":{"query":"{\\"x\\""},"name":"search"}', {"query": '{"x"'}),
        ('{"name":"search"}', {}),
        ('{"name":"search","arguments":null}', {}),
        ('{"name":"search","arguments":"{\\"query\\":\\"x\\"}"}', {"query": "x"}),
        ('{"name":"search","arguments":" {\\"q\\":1} "}', {"q": 1}),
        ('{"name":"search","arguments":{"query":"a\nb\tc"}}', {"query": "a\nb\tc"}),
        ('{"name":"search","arguments":{"n":' + "7" * 30 + "}}", {"n": int("7" * 30)}),
    ],
    ids=[
        "tag inside",
        "order",
        "none",
        "null",
        "as text",
        "as text with spaces",
        "raw control",
        "many digits",
    ],
)
def test_json_call(body: str, arguments: Any) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert calls(check_all_growth(text, HERMES_TOOLS)) == [("search", arguments)]
    assert parsed(text, HERMES_TOOLS)["content"] == ""


def test_json_arguments_keep_their_numbers_as_written() -> None:
    raw = '{"a": 1.10, "b": 1e400, "c": ' + "9" * 5000 + "}"
    message = parsed(f'<tool_call>{{"name":"f","arguments":{raw}}}</tool_call>', HERMES_TOOLS)
    assert message["tool_calls"][0]["function"]["arguments"] == raw


@pytest.mark.parametrize(
    "body",
    [
        "{'name': 'search'}",
        '{"name":"search","arguments":[1]}',
        '{"name":"search","arguments":{"n":NaN}}',
        '{"name":"search","arguments":{"n":-Infinity}}',
        '{"name":"search","arguments":{"n":01}}',
        '{"name":"search","arguments":{"q":"\\x"}}',
        '{"name":"","arguments":{}}',
        '{"arguments":{}}',
        '{"name":"search",}',
        "search(query=1)",
        '{"name":"search","arguments":"x"}',
        '{"name":"search","arguments":"{} {}"}',
        '{"name":"search","arguments":"' + '{\\"a\\":' * 5000 + '1"}',
        '{"name":"search","arguments":' + '{"a":' * 300 + "1" + "}" * 301,
    ],
)
def test_broken_json_call_is_content(body: str) -> None:
    good = hermes_call("search", {"query": "x"})
    text = f"<tool_call>{body}</tool_call> then {good}"
    message = check_all_growth(text, HERMES_TOOLS)
    assert calls(message) == [("search", {"query": "x"})]
    assert message["content"] == f"<tool_call>{body}</tool_call> then"


@pytest.mark.parametrize("place", ["name", "arguments"])
def test_unpaired_surrogate_in_a_call_is_refused(place: str) -> None:
    values = {"name": '"f"', "arguments": "{}", place: '"\\ud83d"'}
    if place == "arguments":
        values[place] = '{"q":["\\ud83d"]}'
    body = f'{{"name":{values["name"]},"arguments":{values["arguments"]}}}'
    with pytest.raises(Unsupported, match=f"tool call: {place}"):
        parse_response(f"<tool_call>{body}</tool_call>", HERMES_TOOLS, is_partial=False)
    fine = parsed(hermes_call("f", {"q": "\\ud83e\\udd99"}), HERMES_TOOLS)
    assert len(fine["tool_calls"]) == 1


# Calls as tags.

PRINTS = 'print("</parameter>")\nsecond line'


@pytest.mark.parametrize(
    "content",
    [
        PRINTS,
        'print("</function>")\nx',
        "print('<tool_call>')\n<tool_call>\nx",
        "</function>\nx",
        "a</parameter>\n</parameter>",
        "see <parameter=x> and </tool_call>",
        "\n\nleading and trailing\n\n",
        "one\r\ntwo\r\n",
        "\r\n",
        "ends in a carriage return\r",
        "",
        " ",
        "é漢🤗",
        "</",
    ],
)
def test_parameter_text_with_the_format_s_own_tags(content: str) -> None:
    text = xml_call("write_file", path="a.py", content=content)
    message = check_all_growth(text, XML_DIRECT)
    assert calls(message) == [("write_file", {"path": "a.py", "content": content})]
    assert message == parsed(text, XML_DIRECT)
    first = xml_call("write_file", content=content, path="a.py")
    assert calls(parsed(first, XML_DIRECT)) == [
        ("write_file", {"content": content, "path": "a.py"})
    ]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (
            f"<parameter=path>\na.py\n<parameter=content>\n{PRINTS}\n</parameter>\n</function>",
            {"path": "a.py", "content": PRINTS},
        ),
        ("<parameter=path>\na.py\n</function>", {"path": "a.py"}),
        ("<parameter=path>a.py</parameter></function>", {"path": "a.py"}),
        ("<parameter=path>\r\na.py\r\n</parameter>\r\n</function>", {"path": "a.py"}),
        ("</function>", {}),
    ],
    ids=["first not closed", "last not closed", "no newlines", "crlf", "no parameters"],
)
def test_tags_written_otherwise(text: str, arguments: dict[str, str]) -> None:
    whole = f"<tool_call><function=write_file>{text}\n</tool_call>"
    message = check_all_growth(whole, XML_DIRECT)
    assert calls(message) == [("write_file", arguments)]


@pytest.mark.parametrize(
    ("call", "meta"),
    [
        (xml_call("search", query="x"), XML_DIRECT),
        (hermes_call("search", {"query": "x"}), HERMES_TOOLS),
    ],
    ids=["xml", "hermes"],
)
def test_call_without_its_closing_tag(call: str, meta: str) -> None:
    short = call.removesuffix("</tool_call>")
    assert "tool_calls" not in parsed(short, meta, is_partial=True)
    assert calls(parsed(short, meta)) == [("search", {"query": "x"})]
    assert len(calls(check_all_growth(short + call, meta))) == 2


@pytest.mark.parametrize("meta", [XML_DIRECT, HERMES_TOOLS], ids=["xml", "hermes"])
def test_tag_names_in_prose_are_content(meta: str) -> None:
    text = "Write `<tool_call>` and </tool_call>, or <function=x>.\n<tool"
    assert parsed(text, meta)["content"] == text
    assert check_all_growth(text, meta)["content"] == text.removesuffix("\n<tool")


def test_calls_are_read_only_when_the_request_wants_them() -> None:
    text = xml_call("search", query="x")
    for meta in (metadata(XML, **OFF), metadata(XML, FILE_TOOLS, tool_choice_json='"none"', **OFF)):
        assert parsed(text, meta) == {"role": "assistant", "content": text}
