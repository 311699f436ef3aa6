"""Prompt texts: what reaches the template, what it may do, and what is refused.

The controls are llama.cpp (in a process of its own, with the real model's template) and
transformers; both are asked for the same conversations.
"""

import json
import threading
from typing import Any

import pytest

from engine.chat import ChatRequest, ChatTemplate
from tests.cpu.chat_cases import (
    FILE_TOOLS,
    HERMES,
    MARKUP_TOOL,
    PLAIN,
    SOURCES,
    USER,
    XML,
    caller,
    made,
    refusal,
    tool,
)

# Content: null, absent, empty, parts.


NEEDS_USER = (
    "{% if 'user' not in messages | map(attribute='role') | list %}"
    "{{ raise_exception('no user') }}{% endif %}"
)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize(
    "content",
    [{"content": None}, {}, {"content": ""}, {"content": []}],
    ids=["null", "absent", "empty", "no parts"],
)
def test_content_that_is_not_there(source: str, content: dict[str, Any]) -> None:
    conversation = [USER, caller("{}", **content), USER]
    prompt = made(source, conversation)
    assert prompt == made(source, [USER, caller("{}", content=""), USER])
    assert "None" not in prompt
    assert "null" not in prompt


@pytest.mark.parametrize(
    ("source", "joined"),
    [(PLAIN, "A\nB"), (XML, "AB"), (NEEDS_USER + XML, "AB")],
    ids=["takes text", "takes parts", "takes parts beside a user"],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_text_parts_are_all_kept(source: str, joined: str, role: str) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    prompt = made(source, [{"role": role, "content": parts}, USER])
    assert prompt == made(source, [{"role": role, "content": joined}, USER])


def test_null_and_absent_stay_apart() -> None:
    shown = "{% for m in messages %}{{ 'C' if 'content' in m else 'A' }}{% endfor %}"
    assert made(shown, [{"role": "assistant", "content": None}, {"role": "assistant"}]) == "CA"


def test_null_elsewhere_counts_as_absent() -> None:
    shown = "{% for m in messages %}{{ m.keys() | list }}{% endfor %}"
    message = {**USER, "name": None, "tool_calls": [], "reasoning_content": None}
    assert made(shown, [message]) == "['role', 'content']"


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ({}, "messages: not an array"),
        ([1], "messages[0]: not an object"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": "user", "content": 7}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], 'content[0]: part of type "image'),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{**USER, "tool_calls": {}}], "messages[0].tool_calls: not an array"),
        ([{**USER, "tool_calls": [{"id": "x"}]}], "messages[0].tool_calls[0].function"),
        ([{**USER, "tool_calls": [{"function": {}}]}], "tool_calls[0].function.name"),
    ],
)
def test_bad_message_is_refused_by_place(messages: Any, place: str) -> None:
    assert place in refusal(PLAIN, messages)


# Tool calls in the history.


@pytest.mark.parametrize("source", [HERMES, XML], ids=["hermes", "xml"])
def test_arguments_as_text_render_like_the_object(source: str) -> None:
    arguments = {"city": "Paris", "n": 3, "deep": {"list": [1, None, True]}, 'a"b': "é漢"}
    text = json.dumps(arguments)
    result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    prompt = made(source, [USER, caller(text), result, USER])
    assert prompt == made(source, [USER, caller(arguments), result, USER])
    assert "é漢" in prompt


@pytest.mark.parametrize("text", ["{}", "", " \n"])
def test_no_arguments(text: str) -> None:
    assert "<function=f>\n</function>" in made(XML, [USER, caller(text)])


@pytest.mark.parametrize("text", ["null", "[1]", '"x"', "1", '{"a":', None, 5, '{"a":1e400}'])
def test_arguments_that_are_no_object(text: Any) -> None:
    message = refusal(XML, [USER, USER, caller(text)])
    assert "messages[2].tool_calls[0].function.arguments" in message


def test_template_that_takes_argument_text_gets_text() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ 'call ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert made(source, [caller('{"a": 1}')]) == 'call {"a":1}'
    assert made(PLAIN, [USER, caller('{"a": 1}')]) == made(
        PLAIN, [USER, {"role": "assistant", "content": ""}]
    )


# Tool schemas reach the prompt as they came.

# Made by transformers 5.24 (render_jinja_template) from HERMES and MARKUP_TOOL.
MARKUP_PROMPT = (
    '<|system|>\nTools:\n{"type": "function", "function": {"name": "f", "description": '
    '"<b>Tom & Jerry\'s</b> 漢字 🤗 a/b", "parameters": {"type": "object", "properties": '
    '{"z": {"enum": ["<x>"]}, "a": {"default": 1.0, "maximum": 1}}, '
    '"x": {"y": null, "t": true}}}}<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n'
)


def test_tool_schema_bytes() -> None:
    assert made(HERMES, [USER], [MARKUP_TOOL]) == MARKUP_PROMPT


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("tojson", '{"b": "<é>", "a": [1]}'),
        ("tojson(indent=1)", '{\n "b": "<é>",\n "a": [\n  1\n ]\n}'),
        ("tojson(ensure_ascii=true)", '{"b": "<\\u00e9>", "a": [1]}'),
        ("tojson(separators=(',', ':'))", '{"b":"<é>","a":[1]}'),
        ("tojson(sort_keys=true)", '{"a": [1], "b": "<é>"}'),
    ],
)
def test_tojson_keywords(call: str, text: str) -> None:
    kwargs = json.dumps({"value": {"b": "<é>", "a": [1]}})
    assert made(f"{{{{ value | {call} }}}}", [USER], chat_template_kwargs=kwargs) == text


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ({}, "tools: not an array"),
        ("x", "tools: not an array"),
        ([1], "tools[0]"),
        ([tool("f"), {"type": "web"}], "tools[1]"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
    ],
)
def test_bad_tools_are_refused_by_place(tools: Any, place: str) -> None:
    assert place in refusal(HERMES, [USER], tools)


# Names a template sees.


def seen(source: str, **fields: Any) -> str:
    return made("{{ " + source + " }}", [USER], **fields)


def test_thinking_switch_sets_every_spelling() -> None:
    names = (
        "[enable_thinking, enableThinking, enable_reasoning, use_reasoning, reasoning_enabled, "
        "use_thinking, thinking_enabled, enable_think, think_enabled]"
    )
    on = {"override_enable_thinking": True, "enable_thinking": True}
    off = {"override_enable_thinking": True, "enable_thinking": False}
    assert seen(names, **on) == str([True] * 9)
    assert seen(names, **off) == str([False] * 9)
    assert seen("enable_thinking is defined") == "False"
    assert seen("reasoning_effort is defined", **on) == "False"
    assert seen("reasoning_effort", **off) == "0"


def test_keywords_win_except_for_effort_when_off() -> None:
    fields = {"override_enable_thinking": True, "enable_thinking": False}
    kwargs = json.dumps({"enable_thinking": True, "reasoning_effort": "high", "own": {"a": [1]}})
    both = {**fields, "chat_template_kwargs": kwargs}
    assert seen("[enable_thinking, use_thinking]", **both) == "[True, False]"
    assert seen("reasoning_effort", **both) == "0"
    assert seen("reasoning_effort", chat_template_kwargs=kwargs) == "high"
    assert seen("own.a[0]", chat_template_kwargs=kwargs) == "1"


@pytest.mark.parametrize("text", ["[]", "1", '{"messages":[]}', '{"add_generation_prompt":true}'])
def test_keywords_that_are_refused(text: str) -> None:
    assert "chat_template_kwargs" in refusal(PLAIN, [USER], chat_template_kwargs=text)


def test_bos_is_left_out_only_if_the_vocabulary_adds_it() -> None:
    request = ChatRequest('[{"role":"user","content":"<s>"}]')
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    for adds_bos, prompt in ((False, "<s><s></s>"), (True, "<s></s>")):
        template = ChatTemplate(source, bos_text="<s>", eos_text="</s>", adds_bos=adds_bos)
        assert template.render(request).prompt == prompt


def test_repeated_call_is_the_same_even_if_the_clock_moves() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%f') }}{{ messages[0].content }}",
        bos_text="",
        eos_text="",
        adds_bos=False,
    )
    requests = [ChatRequest(json.dumps([{**USER, "content": str(i)}])) for i in range(3)]
    first = [template.render(request) for request in requests]
    assert [template.render(request) for request in requests] == first


def test_threads_share_a_template() -> None:
    template = ChatTemplate(XML, bos_text="", eos_text="", adds_bos=False)
    tools = json.dumps(FILE_TOOLS)
    wrong: list[str] = []

    def work(thread: int) -> None:
        for i in range(20):
            text = f"{thread}-{i}"
            request = ChatRequest(json.dumps([{**USER, "content": text}]), tools)
            if f"<|user|>\n{text}<|end|>" not in template.render(request).prompt:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
