"""Responses: what is reasoning, content or a call, for whole texts and for every prefix."""

import json
import random
import threading
from typing import Any

import pytest

from engine.chat import parse_response, parse_response_bytes
from engine.errors import Unsupported
from tests.cpu.chat_cases import (
    FILE_TOOLS,
    HERMES,
    HERMES_TOOLS,
    OFF,
    PLAIN,
    XML,
    XML_DIRECT,
    XML_THINKING,
    calls,
    check_all_growth,
    check_growth,
    hermes_call,
    metadata,
    parsed,
    xml_call,
)

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
    for _ in range(400):
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
    with pytest.raises(Unsupported, match=r"^metadata: "):
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
