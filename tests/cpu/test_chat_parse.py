"""Responses: what is reasoning, content or a call, for whole texts and for every prefix."""

import json
import random
import threading
from itertools import pairwise
from typing import Any

import pytest

from engine.chat import parse_response, parse_response_bytes
from engine.errors import Unsupported
from tests.cpu.chat_cases import FILE_TOOLS, HERMES, PLAIN, XML, metadata

OFF = {"override_enable_thinking": True, "enable_thinking": False}
XML_THINKING = metadata(XML, FILE_TOOLS)
XML_DIRECT = metadata(XML, FILE_TOOLS, **OFF)
HERMES_TOOLS = metadata(HERMES, FILE_TOOLS)


def parsed(text: str, meta: str, is_partial: bool = False) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(parse_response(text, meta, is_partial=is_partial))
    assert message["role"] == "assistant"
    assert set(message) <= {"role", "content", "reasoning_content", "tool_calls"}
    return message


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def xml_call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def hermes_call(name: str, arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def check_growth(pieces: list[bytes], meta: str) -> dict[str, Any]:
    """Feeds the text piece by piece; each answer must extend the one before."""
    answers = []
    raw = b""
    for piece in pieces:
        raw += piece
        answers.append(json.loads(parse_response_bytes(raw, meta, is_partial=True)))
    answers.append(json.loads(parse_response_bytes(raw, meta, is_partial=False)))
    for shorter, longer in pairwise(answers):
        for key in ("content", "reasoning_content"):
            assert longer.get(key, "").startswith(shorter.get(key, ""))
            assert "\ufffd" not in longer.get(key, "")
        n_calls = len(shorter.get("tool_calls", []))
        assert longer.get("tool_calls", [])[:n_calls] == shorter.get("tool_calls", [])
    return answers[-2]


def check_all_growth(text: str, meta: str) -> dict[str, Any]:
    """Byte by byte, and along five random sets of borders."""
    raw = text.encode()
    last = check_growth([raw[i : i + 1] for i in range(len(raw))], meta)
    for seed in range(5):
        chosen = random.Random(seed).sample(range(1, len(raw)), min(12, len(raw) - 1))
        borders = [0, *sorted(chosen), len(raw)]
        pieces = [raw[a:b] for a, b in pairwise(borders)]
        assert check_growth(pieces, meta) == last
    return last


# Reasoning under all switches.

REPLY = "Four."


@pytest.mark.parametrize("reasoning_format", [None, "", "auto", "none", "deepseek"])
@pytest.mark.parametrize(
    ("fields", "is_open"),
    [
        ({}, True),
        ({"override_enable_thinking": True, "enable_thinking": True}, True),
        (OFF, False),
        ({"chat_template_kwargs": '{"enable_thinking":false}'}, False),
        ({**OFF, "chat_template_kwargs": '{"enable_thinking":true}'}, True),
    ],
    ids=["default", "on", "off", "keyword off", "keyword against override"],
)
def test_plain_reply(fields: dict[str, Any], is_open: bool, reasoning_format: str | None) -> None:
    message = parsed(REPLY, metadata(XML, **{**fields, "reasoning_format": reasoning_format}))
    is_raw = reasoning_format in (None, "", "none")
    if is_open and not is_raw:
        assert message == {"role": "assistant", "content": "", "reasoning_content": REPLY}
    else:
        assert message == {"role": "assistant", "content": REPLY}


@pytest.mark.parametrize("reasoning_format", ["auto", "deepseek", "deepseek-legacy"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>Consider the greeting.</think>Hi there!", "Consider the greeting.", "Hi there!"),
        (" \n<think>\n a\nb \n</think>\n\n\nHi <b> ", "a\nb", "Hi <b> "),
        ("<think></think>\nHi", None, "Hi"),
        ("<think>cut off </thi", "cut off </thi", ""),
        ("<think>", None, ""),
        ("<thin", None, "<thin"),
        ("", None, ""),
        ("a <think>b</think>", None, "a <think>b</think>"),
        ("<think>a <interface> b</think>x<y", "a <interface> b", "x<y"),
    ],
)
def test_block_that_the_text_opens(
    text: str, reasoning: str | None, content: str, reasoning_format: str
) -> None:
    meta = metadata(PLAIN, reasoning_format=reasoning_format)
    message = parsed(text, meta)
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    if text:
        check_all_growth(text, meta)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("</think>\n\nHi", None, "Hi"),
        ("why</think>Hi</think>", "why", "Hi</think>"),
        ("<think>why</think>Hi", "why", "Hi"),
        ("cut", "cut", ""),
    ],
)
def test_block_that_the_prompt_opened(text: str, reasoning: str | None, content: str) -> None:
    message = parsed(text, XML_THINKING)
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    check_all_growth(text, XML_THINKING)


def test_format_none_leaves_the_text_as_it_is() -> None:
    meta = metadata(XML, reasoning_format="none")
    for text in ("why</think>\n\nHi", "<think>a</think> b \n", "<thi", " "):
        for is_partial in (True, False):
            assert parsed(text, meta, is_partial) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("reasoning_format", ["auto", "none"])
def test_only_what_follows_the_reasoning_is_a_call(reasoning_format: str) -> None:
    meta = metadata(XML, FILE_TOOLS, reasoning_format=reasoning_format)
    draft = "I use <tool_call>, like\n" + xml_call("search", query="draft") + "\nor not"
    real = xml_call("search", query="real")
    message = check_all_growth(f"{draft}\n</think>\n\n{real}", meta)
    assert calls(message) == [("search", {"query": "real"})]
    field = "reasoning_content" if reasoning_format == "auto" else "content"
    assert draft in message[field]
    unfinished = parsed(draft, meta)
    assert "tool_calls" not in unfinished
    assert unfinished[field] == draft


# Streams.


@pytest.mark.parametrize(
    ("meta", "call"),
    [
        (XML_THINKING, lambda query: xml_call("search", query=query)),
        (metadata(HERMES, FILE_TOOLS), lambda query: hermes_call("search", {"query": query})),
    ],
    ids=["xml", "hermes"],
)
def test_every_prefix_of_a_long_answer(meta: str, call: Any) -> None:
    thought = "run `ovs-vsctl get Interface <interface> name` 漢字 🤗"
    opened = "" if meta == XML_THINKING else "<think>"
    broken = call("third")[:-20]
    text = f"{opened}{thought}</think>\na<b é\n{call('one <x> 🦙')}\n{call('two')}\n{broken}"
    message = check_all_growth(text, meta)
    assert message["reasoning_content"] == thought
    assert message["content"] == "a<b é"
    assert calls(message) == [("search", {"query": "one <x> 🦙"}), ("search", {"query": "two"})]
    assert len({entry["id"] for entry in message["tool_calls"]}) == 2
    final = parsed(text, meta)
    assert final["tool_calls"] == message["tool_calls"]
    assert final["content"] == f"a<b é\n{broken}"
    whole = text[: -len(broken) - 1]
    assert parsed(whole, meta) == parsed(whole, meta, is_partial=True)


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=search>", "</function>", "<parameter=query>"),
    *("</parameter>", "<parameter=", "=x>", "</", "<think>", "</think>", "<thi", "\n", " ", "\r\n"),
    *("a", "é", "🦙", "{", "}", "[", "]", '"', "\\", ",", ":", "1", "e", "5.", "tru", "null"),
    *('"name"', '"arguments"', '{"name": "search", "arguments": ', '{"query": "x"}'),
    *(xml_call("search", query="x"), hermes_call("search", {"query": "x"})),
]


@pytest.mark.parametrize(
    "meta", [XML_THINKING, XML_DIRECT, HERMES_TOOLS], ids=["thinking", "xml", "hermes"]
)
def test_random_texts_only_grow(meta: str) -> None:
    choose = random.Random(7)
    n_calls = 0
    for _ in range(150):
        text = "".join(choose.choices(PIECES, k=choose.randint(1, 16)))
        raw = text.encode()
        last = check_growth([raw[i : i + 1] for i in range(len(raw))], meta)
        n_calls += len(last.get("tool_calls", []))
    # Otherwise the pieces would not exercise what the test is about.
    assert n_calls > 10


def test_ids_depend_on_request_and_index() -> None:
    text = hermes_call("search", {}) * 2
    ids = [call["id"] for call in parsed(text, HERMES_TOOLS)["tool_calls"]]
    again = [call["id"] for call in parsed(text + " ", HERMES_TOOLS)["tool_calls"]]
    other = metadata(HERMES, FILE_TOOLS, chat_template_kwargs='{"tools_note":1}')
    assert ids == again == [call["id"] for call in parsed(text, other)["tool_calls"]]
    longer = metadata(HERMES, [*FILE_TOOLS, FILE_TOOLS[0]])
    assert ids != [call["id"] for call in parsed(text, longer)["tool_calls"]]


# Calls as JSON.


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name":"search","arguments":{"query":"</tool_call>"}}', {"query": "</tool_call>"}),
        ('{"arguments":{"query":"{\\"x\\""},"name":"search"}', {"query": '{"x"'}),
        ('{"name":"search"}', {}),
        ('{"name":"search","arguments":null}', {}),
        ('{"name":"search","arguments":"{\\"query\\":\\"x\\"}"}', {"query": "x"}),
        ('{"name":"search","arguments":{"query":"a\nb\tc"}}', {"query": "a\nb\tc"}),
        ('{"name":"search","arguments":{"n":' + "7" * 30 + "}}", {"n": int("7" * 30)}),
    ],
    ids=["tag inside", "order", "none", "null", "as text", "raw control", "many digits"],
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


# Bytes and metadata.


def test_cut_character_is_left_out_and_bad_bytes_are_refused() -> None:
    meta = metadata(PLAIN)
    raw = "x 🦙".encode()
    for is_partial in (True, False):
        for n_bytes in range(3, len(raw)):
            text = parse_response_bytes(raw[:n_bytes], meta, is_partial=is_partial)
            assert json.loads(text)["content"] == "x "
        with pytest.raises(Unsupported, match="not UTF-8 at byte 1"):
            parse_response_bytes(b"a\xffb", meta, is_partial=is_partial)
    with pytest.raises(Unsupported, match="unpaired surrogate at character 1"):
        parse_response("a\ud83d", meta, is_partial=False)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", "x", "[" * 99_999, '{"response":{}}', '{"response":1}']
    + [
        json.dumps({**json.loads(XML_DIRECT), key: value})
        for key, value in [
            ("response", None),
            ("reasoning_format", 5),
            ("parse_tool_calls", "yes"),
            ("response", {**json.loads(XML_DIRECT)["response"], "tool_format": "other"}),
            ("response", {**json.loads(XML_DIRECT)["response"], "types": {"f": {"k": ["odd"]}}}),
            ("response", {**json.loads(XML_DIRECT)["response"], "types": {"f": [1]}}),
        ]
    ],
)
def test_metadata_that_is_not_ours(text: str) -> None:
    with pytest.raises(Unsupported, match="^metadata: "):
        parse_response("x", text, is_partial=False)


def test_threads_parse_alike() -> None:
    text = "why</think>" + xml_call("search", query="x", limit="5")
    expected = parse_response(text, XML_THINKING, is_partial=False)
    answers: list[str] = []

    def work() -> None:
        answers.extend(parse_response(text, XML_THINKING, is_partial=False) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {expected}
    assert len(answers) == 200
