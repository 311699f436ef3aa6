"""Owns the inputs that several chat tests share: three small templates, tools, and the metadata.

The templates are written for these tests, in the three shapes that matter: no tools at all, calls as
JSON (`hermes`), calls as tags (`qwen-xml`, which also opens thinking).
"""

import json
from typing import Any

from engine.chat import ChatRequest, ChatTemplate, RenderedChat

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


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool with an object schema of these properties."""
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TEXT = {"type": "string"}
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


def metadata(source: str, tools: Any = None, **fields: Any) -> str:
    """The metadata of a request for one user message, with reasoning format `auto`."""
    return render(source, [USER], tools, **{"reasoning_format": "auto", **fields}).metadata_json
