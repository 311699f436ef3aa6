"""Owns the metadata object: what a rendering tells the sampler and the response parser.

Knows nothing of templates or of generated text. The host reads a few keys and passes the rest back
verbatim, so all that parsing needs is in here and the prompt is not. The keys are those of the
reference; `response` is ours. Contract: sections 4.1 and 5.4 of the ABI's semantics.

How the host sees tools: `grammar_triggers` tells it that the template handles them. A template
that shows no format of its own gets no trigger and an empty `chat_parser`, and the host then puts
the tools into the messages itself. Its grammar is there all the same, in the fallback format; lazy
and without a trigger it never starts, which is right: nothing in the prompt asked for that format.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.chat.grammar import tool_grammar
from engine.chat.json_text import write_json
from engine.chat.messages import Tool
from engine.chat.tool_formats import CLOSER, FORMATS, OPENER, Types
from engine.chat.typed_values import JSON_TYPES, parameter_types
from engine.errors import Unsupported

FALLBACK_FORMAT = "hermes"

_WORD_TRIGGER = 1


@dataclass(frozen=True)
class RequestFacts:
    """What a rendering has found out: the input of the metadata object.

    `native_format` is a key of FORMATS or "", `generation_prompt` the text that the template put
    after the assistant opener, `seed` an identity of the request from which call ids are made.
    """

    reasoning_format: str
    generation_prompt: str
    in_thinking: bool
    native_format: str
    tools: tuple[Tool, ...]
    tool_choice: str
    parallel_tool_calls: bool
    seed: str


@dataclass(frozen=True)
class ResponsePlan:
    """How to read a response: the part of the metadata that the parser needs."""

    reasoning_format: str
    in_thinking: bool
    tool_format: str
    types: Types
    seed: str


def write_metadata(facts: RequestFacts) -> str:
    """The metadata object as JSON text; `"grammar":""` stands for no grammar, written just so."""
    has_tools = bool(facts.tools) and facts.tool_choice != "none"
    tool_format = facts.native_format or FALLBACK_FORMAT if has_tools else ""
    is_native = has_tools and bool(facts.native_format)
    is_required = has_tools and facts.tool_choice == "required"
    grammar = ""
    if has_tools:
        grammar = tool_grammar(
            tool_format,
            facts.tools,
            facts.parallel_tool_calls,
            is_required=is_required,
            in_thinking=facts.in_thinking,
        )
    types = {tool.name: parameter_types(tool.parameters) for tool in facts.tools}
    response = {
        "in_thinking": facts.in_thinking,
        "tool_format": tool_format,
        "types": types if has_tools else {},
        "seed": facts.seed,
    }
    triggers = [{"type": _WORD_TRIGGER, "value": OPENER}] if is_native else []
    return write_json(
        {
            "chat_format": FORMATS[tool_format].chat_format if is_native else 0,
            "reasoning_format": facts.reasoning_format,
            "generation_prompt": facts.generation_prompt,
            "parse_tool_calls": has_tools,
            "chat_parser": "",
            "grammar": grammar,
            "grammar_lazy": has_tools and not is_required,
            "grammar_triggers": triggers,
            "preserved_tokens": [OPENER, CLOSER] if is_native else [],
            "additional_stops": [],
            "response": response,
        }
    )


@lru_cache(maxsize=16)
def is_own_metadata(metadata_json: str) -> bool:
    """Whether a metadata text is one of ours, whole or damaged: it has our `response` object."""
    try:
        metadata = json.loads(metadata_json)
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and isinstance(metadata.get("response"), dict)


@lru_cache(maxsize=16)
def read_plan(metadata_json: str) -> ResponsePlan:
    """The plan inside a metadata text. Raises Unsupported when it is not metadata of ours."""
    try:
        metadata = json.loads(metadata_json)
    except (ValueError, RecursionError):
        raise Unsupported("metadata: not JSON") from None
    response = _member(metadata, "response", dict)
    tool_format = _member(response, "tool_format", str)
    if not _member(metadata, "parse_tool_calls", bool):
        tool_format = ""
    if tool_format and tool_format not in FORMATS:
        raise Unsupported(f"metadata: tool_format is not {', '.join(FORMATS)}")
    return ResponsePlan(
        reasoning_format=_member(metadata, "reasoning_format", str),
        in_thinking=_member(response, "in_thinking", bool),
        tool_format=tool_format,
        types=_checked_types(_member(response, "types", dict)),
        seed=_member(response, "seed", str),
    )


def _member(value: Any, key: str, kind: type) -> Any:
    member = value.get(key) if isinstance(value, dict) else None
    if not isinstance(member, kind):
        raise Unsupported(f"metadata: {key} is missing or not of kind {_KINDS[kind]}")
    return member


_KINDS = {dict: "object", str: "string", bool: "boolean"}


def _checked_types(types: dict[str, Any]) -> Types:
    for table in types.values():
        for names in table.values() if isinstance(table, dict) else [None]:
            if not isinstance(names, list) or any(name not in JSON_TYPES for name in names):
                raise Unsupported("metadata: types is not a table of JSON types")
    return types
