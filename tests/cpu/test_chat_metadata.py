"""The metadata object: the keys the host reads, the signals for tools, and the grammars.

Grammars are tried on llguidance, one byte per token.
"""

import json
from functools import cache
from typing import Any

import pytest

from engine.chat import parse_response, tool_grammar
from engine.chat.messages import Tool
from engine.errors import Unsupported
from tests.cpu.chat_cases import FILE_TOOLS, HERMES, PLAIN, SOURCES, USER, XML, metadata, render

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
    with pytest.raises(Unsupported, match="^tool_choice: "):
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


# Grammars.


class ByteVocabulary:
    """One token per byte, and one that ends the text."""

    eos_token_id = 256
    bos_token_id = None
    tokens = tuple(bytes([i]) for i in range(256)) + (b"<eos>",)
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> Any:
    llguidance = pytest.importorskip("llguidance", reason="grammars are compiled by it")
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteVocabulary()))


def accepts(grammar: str, text: str) -> bool:
    tokenizer = byte_tokenizer()
    llguidance = pytest.importorskip("llguidance", reason="grammars are compiled by it")
    assert llguidance.LLMatcher.validate_grammar(grammar, tokenizer) == ""
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    raw = list(text.encode())
    return bool(matcher.try_consume_tokens(raw) == len(raw) and matcher.is_accepting())


ODD = Tool("größe-🦙", {"properties": {'a"\\': {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}})
TOOLS = (
    Tool("f", {"properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    Tool("g", {}),
    ODD,
)
HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
XML_TAGS = XML_CALL.replace("\n1\n", '\nprint("</parameter>")\n</function> <tool_call>\n')
XML_ODD = XML_CALL.replace("=f>", "=größe-🦙>").replace("=n>", '=a"\\>')
ONE = {"hermes": HERMES_CALL, "qwen-xml": XML_CALL}


@pytest.mark.parametrize(
    ("tool_format", "text", "is_fine"),
    [
        ("hermes", HERMES_CALL, True),
        ("hermes", '<tool_call>{"name":"g","arguments":{"any":[1,"x"]}}</tool_call>', True),
        ("hermes", '<tool_call>{"name":"größe-🦙","arguments":{"a\\"\\\\":2}}</tool_call>', True),
        ("hermes", '<tool_call>{"name":"f","arguments":{}}</tool_call>', False),
        ("hermes", '<tool_call>{"name":"f","arguments":{"n":"1"}}</tool_call>', False),
        ("hermes", '<tool_call>{"name":"h","arguments":{}}</tool_call>', False),
        ("hermes", XML_CALL, False),
        ("hermes", "text", False),
        ("qwen-xml", XML_CALL, True),
        ("qwen-xml", XML_TAGS, True),
        ("qwen-xml", XML_ODD, True),
        ("qwen-xml", "<tool_call><function=g></function></tool_call>", True),
        ("qwen-xml", XML_CALL.replace("=f>", "=h>"), False),
        ("qwen-xml", XML_CALL.replace("=n>", "=m>"), False),
        ("qwen-xml", XML_CALL.replace("</tool_call>", ""), False),
        ("qwen-xml", HERMES_CALL, False),
    ],
)
def test_grammar_of_one_call(tool_format: str, text: str, is_fine: bool) -> None:
    for parallel in (True, False):
        assert accepts(tool_grammar(tool_format, TOOLS, parallel), text) == is_fine


@pytest.mark.parametrize("tool_format", ONE)
def test_parallel_calls_and_text_after_them(tool_format: str) -> None:
    call = ONE[tool_format]
    many = tool_grammar(tool_format, TOOLS, True)
    single = tool_grammar(tool_format, TOOLS, False)
    for tail in ("\n" + call, " text a<b " + call + call + " end <tool", "\n"):
        assert accepts(many, call + tail)
        assert not accepts(single, call + tail)
    assert not accepts(many, call + "<tool_call>no call</tool_call>")


@pytest.mark.parametrize("tool_format", ONE)
def test_required_call_may_be_thought_about_first(tool_format: str) -> None:
    call = ONE[tool_format]
    closed = tool_grammar(tool_format, TOOLS, False, is_required=True)
    opened = tool_grammar(tool_format, TOOLS, False, is_required=True, in_thinking=True)
    assert accepts(closed, call)
    assert accepts(closed, "\n" + call)
    assert accepts(closed, "<think>a <tool_call> b</think>\n\n" + call)
    assert not accepts(closed, "Sure. " + call)
    assert accepts(opened, "a <tool_call> b</think>\n" + call)
    assert not accepts(opened, call)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("fields", [{}, REQUIRED], ids=["auto", "required"])
def test_what_a_grammar_allows_is_what_the_parser_reads(source: str, fields: Any) -> None:
    tools = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
        for tool in TOOLS
    ]
    text = metadata(source, tools, **fields)
    call = XML_CALL if source == XML else HERMES_CALL
    thought = "</think>\n" if source == XML else ""
    grammar = json.loads(text)["grammar"]
    assert accepts(grammar, (thought if fields else "") + call)
    message = json.loads(parse_response(thought + call, text, is_partial=False))
    (made,) = message["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("f", {"n": 1})


def test_unknown_format_has_no_grammar() -> None:
    with pytest.raises(Unsupported):
        tool_grammar("other", TOOLS, True)
