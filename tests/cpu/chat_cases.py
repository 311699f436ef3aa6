"""Owns the inputs that several chat tests share: small templates, tools, metadata, and how
to read and to check a response.

The templates are written for these tests, in the three shapes that matter: no tools at all, calls
as JSON (`hermes`), calls as tags (`qwen-xml`, which also opens thinking).
"""

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from engine.chat import (
    ChatRequest,
    ChatTemplate,
    RenderedChat,
    parse_response,
    parse_response_bytes,
)
from engine.errors import Unsupported

PLAIN = """
{%- for message in messages -%}
<|{{ message['role'] }}|>
{{ message['content'] + '<|end|>' }}
{% endfor -%}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

HERMES = """
{%- if tools %}
    {{- '<|system|>\\nTools:' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' }}
    {%- if message.content is string %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

XML = """
{%- macro text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}{{ part.text }}{% endfor %}
    {%- elif content is not none and content is defined %}
        {{- raise_exception('content of an unknown kind') }}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|system|>\\nTools:' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' + text(message.content) }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<parameter=' + key + '>\\n' }}
            {{- value if value is string else value | tojson }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}"""

SOURCES = {"plain": PLAIN, "hermes": HERMES, "xml": XML}
USER = {"role": "user", "content": "hi"}
OFF = {"override_enable_thinking": True, "enable_thinking": False}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool with an object schema of these properties."""
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TEXT = {"type": "string"}
MARKUP_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "<b>Tom & Jerry's</b> 漢字 🤗 a/b",
        "parameters": {
            "type": "object",
            "properties": {"z": {"enum": ["<x>"]}, "a": {"default": 1.0, "maximum": 1}},
            "x": {"y": None, "t": True},
        },
    },
}
FILE_TOOLS = [
    tool("write_file", path=TEXT, content=TEXT),
    tool("search", query=TEXT, limit={"type": "integer"}),
]


def render(source: str, messages: Any, tools: Any = None, **fields: Any) -> RenderedChat:
    """A rendering of plain values by a fresh template."""
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>", adds_bos=False)
    if tools is not None:
        fields["tools_json"] = json.dumps(tools)
    return template.render(ChatRequest(json.dumps(messages), **fields))


def made(source: str, messages: Any, tools: Any = None, **fields: Any) -> str:
    return render(source, messages, tools, **fields).prompt


def refusal(source: str, messages: Any, tools: Any = None, **fields: Any) -> str:
    with pytest.raises(Unsupported) as caught:
        render(source, messages, tools, **fields)
    message = str(caught.value)
    message.encode()
    assert "Error" not in message
    assert "Traceback" not in message
    assert "/" not in message
    return message


def caller(arguments: Any, **message: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "tool_calls": calls, **message}


def metadata(source: str, tools: Any = None, **fields: Any) -> str:
    """The metadata of a request for one user message, with reasoning format `auto`."""
    return render(source, [USER], tools, **{"reasoning_format": "auto", **fields}).metadata_json


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
