"""The metadata object: the keys the host reads and the signals for tools."""

import json
from typing import Any

import pytest

from engine.chat import parse_response
from engine.errors import Unsupported
from tests.cpu.chat_cases import (
    FILE_TOOLS,
    HERMES,
    PLAIN,
    SOURCES,
    USER,
    XML,
    metadata,
    render,
)

KEYS = {
    "chat_format": int,
    "reasoning_format": str,
    "generation_prompt": str,
    "parse_tool_calls": bool,
    "chat_parser": str,
    "grammar": str,
    "grammar_lazy": bool,
    "grammar_triggers": list,
    "preserved_tokens": list,
    "additional_stops": list,
}
REQUIRED = {"tool_choice_json": '"required"'}
GLM_LIKE = HERMES.replace('\\n{"name": "', "").replace('", "arguments": ', "<arg_key>")


def keys(source: str, tools: Any = None, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata(source, tools, **fields))
    return found


@pytest.mark.parametrize("tools", [None, FILE_TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_all_keys_with_their_types(source: str, tools: Any) -> None:
    text = metadata(source, tools)
    found = json.loads(text)
    assert {key: type(found[key]) for key in KEYS} == KEYS
    assert "\0" not in text
    assert ('"grammar":""' in text) == (tools is None)
    assert found["parse_tool_calls"] == (tools is not None)


@pytest.mark.parametrize("tools", [None, "", "[]", "null"])
def test_no_tools_means_no_tools(tools: str | None) -> None:
    found = json.loads(render(XML, [USER], tools_json=tools).metadata_json)
    assert (found["parse_tool_calls"], found["grammar"]) == (False, "")


def test_native_template_shows_a_trigger() -> None:
    for source in (HERMES, XML):
        for fields in ({}, REQUIRED):
            found = keys(source, FILE_TOOLS, **fields)
            assert found["grammar_triggers"] == [{"type": 1, "value": "<tool_call>"}]
            assert found["chat_format"] > 0


@pytest.mark.parametrize("source", [PLAIN, GLM_LIKE, "{# <tool_call> #}" + PLAIN])
def test_template_without_a_known_format_leaves_tools_to_the_host(source: str) -> None:
    found = keys(source, FILE_TOOLS)
    assert found["grammar_triggers"] == []
    assert found["chat_parser"] == ""
    assert found["chat_format"] == 0
    assert found["grammar"] != ""
    assert found["grammar_lazy"] is True
    call = '<tool_call>{"name":"search","arguments":{}}</tool_call>'
    answer = parse_response(call, json.dumps(found), is_partial=False)
    assert json.loads(answer)["tool_calls"][0]["function"]["name"] == "search"


@pytest.mark.parametrize(
    ("choice", "has_calls", "is_lazy"),
    [
        (None, True, True),
        ("", True, True),
        ("null", True, True),
        ('"auto"', True, True),
        ("{}", True, True),
        ('{"type":"auto"}', True, True),
        ('"none"', False, False),
        ('{"type":"none"}', False, False),
        ('"required"', True, False),
        ('{"type":"required"}', True, False),
        ('{"type":"function","function":{"name":"search"}}', True, False),
        ('{"type":"tool"}', True, False),
        ('{"type":"any"}', True, False),
    ],
)
def test_tool_choice(choice: str | None, has_calls: bool, is_lazy: bool) -> None:
    found = keys(XML, FILE_TOOLS, tool_choice_json=choice)
    assert (found["parse_tool_calls"], found["grammar_lazy"]) == (has_calls, is_lazy)
    assert (found["grammar"] != "") == has_calls


@pytest.mark.parametrize("choice", ['"maybe"', "1", "[]", '{"type":"x"}', "auto", '"function"'])
def test_tool_choice_that_is_refused(choice: str) -> None:
    with pytest.raises(Unsupported, match=r"^tool_choice: "):
        metadata(XML, FILE_TOOLS, tool_choice_json=choice)


def test_forced_function_is_the_only_one_in_the_grammar() -> None:
    choice = '{"type":"function","function":{"name":"%s"}}'
    grammar = keys(XML, FILE_TOOLS, tool_choice_json=choice % "search")["grammar"]
    assert "function=search" in grammar
    assert "write_file" not in grammar
    with pytest.raises(Unsupported, match="not among the tools"):
        metadata(XML, FILE_TOOLS, tool_choice_json=choice % "other")


@pytest.mark.parametrize(
    ("fields", "prompt_end"),
    [
        ({}, "<think>\n"),
        ({"override_enable_thinking": True, "enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ({"add_assistant": False}, ""),
    ],
)
def test_generation_prompt(fields: dict[str, Any], prompt_end: str) -> None:
    rendered = render(XML, [USER], **fields)
    assert json.loads(rendered.metadata_json)["generation_prompt"] == prompt_end
    assert rendered.prompt.endswith(prompt_end)


def test_generation_prompt_is_not_taken_from_the_history() -> None:
    trims = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}|bot|{% else %}.{% endif %}"
    )
    rendered = render(trims, [{"role": "user", "content": "<think>"}])
    assert json.loads(rendered.metadata_json)["generation_prompt"] == ""


@pytest.mark.parametrize(
    ("given", "shown"), [(None, "none"), ("", "none"), ("auto", "auto"), ("deepseek", "deepseek")]
)
def test_reasoning_format(given: str | None, shown: str) -> None:
    assert keys(PLAIN, reasoning_format=given)["reasoning_format"] == shown


def test_unknown_reasoning_format_is_refused() -> None:
    with pytest.raises(Unsupported, match="reasoning_format"):
        metadata(PLAIN, reasoning_format="deep")
