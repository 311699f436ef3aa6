"""Owns the grammars that constrain generated tool calls, as text.

Knows nothing of samplers; whoever constrains compiles the text. The language is the Lark dialect
of the `llguidance` package, start rule `start`, over the characters of the generated text: the tags
must reach the matcher as text, not as special tokens.

A lazy grammar matches from the trigger on, the trigger included. A required one matches from the
first generated character on, so the generation prompt must not be fed to it. Bodies follow the
tool's schema: `hermes` by the JSON schema itself, `qwen-xml` by the names of functions and
parameters, with values free up to the closing tag that the next structural tag follows. A schema
that llguidance cannot compile makes the grammar fail when it is compiled, not here.
"""

import json
from collections.abc import Callable, Sequence

from engine.chat.json_text import write_json
from engine.chat.messages import Tool
from engine.chat.tool_formats import CLOSER, OPENER
from engine.errors import Unsupported

_TERMS = r"""
TEXT: /(.|\n)*/
WS: /[ \t\r\n]*/
"""
_XML_TERMS = r"""
next[lazy]: TEXT "</parameter>" WS "<parameter="
last[lazy]: TEXT "</parameter>" WS "</function>"
NAME: /[^<>\n]+/
"""
_THOUGHT = 'thought[lazy]: TEXT "</think>"\n'


def tool_grammar(
    tool_format: str,
    tools: Sequence[Tool],
    parallel: bool,
    *,
    is_required: bool = False,
    in_thinking: bool = False,
) -> str:
    """A grammar for one call, or with `parallel` for any number of them amid free text.

    `in_thinking` tells a required grammar that the prompt has opened the reasoning already; it
    is finished first, while otherwise a block of reasoning may come first.
    """
    if tool_format not in _BODIES:
        raise Unsupported(f"tool grammar: no format {tool_format!r}")
    opening = _quoted(OPENER)
    if is_required:
        opening = ("thought WS " if in_thinking else '("<think>" thought)? WS ') + opening
    rules = [
        "%llguidance {}",
        f"start: {opening} body{' rest' if parallel else ''}",
        f"body: WS call WS {_quoted(CLOSER)}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(tools))),
        *(_BODIES[tool_format](i, tool) for i, tool in enumerate(tools)),
    ]
    if parallel:
        rules += ["rest: (more body)* TEXT", f"more[lazy]: TEXT {_quoted(OPENER)}"]
    tail = (_THOUGHT if is_required else "") + (_XML_TERMS if tool_format == "qwen-xml" else "")
    return "\n".join(rules) + "\n" + tail + _TERMS


def _hermes_body(i: int, tool: Tool) -> str:
    # Unknown schema keywords are ignored: they describe, and a refusal would fail the request.
    schema = {"type": "object", **tool.parameters, "x-guidance": {"lenient": True}}
    name = f'WS {_quoted(json.dumps("name"))} WS ":" WS {_quoted(write_json(tool.name))}'
    arguments = f'WS {_quoted(json.dumps("arguments"))} WS ":" WS args_{i}'
    return f'call_{i}: "{{" {name} WS "," {arguments} WS "}}"\nargs_{i}: %json {json.dumps(schema)}'


def _xml_body(i: int, tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    is_closed = names and not tool.parameters.get("additionalProperties")
    names_rule = " | ".join(_quoted(name) for name in names) if is_closed else "NAME"
    return (
        f'call_{i}: {_quoted(f"<function={tool.name}>")} WS ("</function>" | "<parameter=" '
        f'(name_{i} ">" next)* name_{i} ">" last)\nname_{i}: {names_rule}'
    )


def _quoted(text: str) -> str:
    return json.dumps(text)


_BODIES: dict[str, Callable[[int, Tool], str]] = {"hermes": _hermes_body, "qwen-xml": _xml_body}
