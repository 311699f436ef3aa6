"""Grammars of tool calls, tried on llguidance with one byte per token."""

import json
from functools import cache
from typing import Any

import pytest

from engine.chat import Tool, tool_grammar
from engine.errors import Unsupported
from tests.cpu.chat_cases import SOURCES, XML, calls, metadata, parsed

REQUIRED = {"tool_choice_json": '"required"'}


class ByteVocabulary:
    """One token per byte, and one that ends the text."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>")
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
    message = parsed(thought + call, text)
    assert calls(message) == [("f", {"n": 1})]


def test_unknown_format_has_no_grammar() -> None:
    with pytest.raises(Unsupported):
        tool_grammar("other", TOOLS, True)
