"""Owns the request's texts: from OpenAI JSON to the plain values a template is rendered with.

Knows nothing of templates, formats or the model. Contract: section 4.1 of the ABI's semantics.
Rules where the contract leaves a choice:
- `content` keeps the difference between null and absent; a list of parts is kept as it is, an
  empty list is empty text; anything but text parts is refused.
- A null in any other key of a message, and an empty `tool_calls`, counts as absent.
- A call's `arguments` must be text (or an object already); the text must hold an object, and
  empty text is a call without arguments.
- A forced function must be one of the tools offered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.chat.json_text import quoted, read_json, write_json
from engine.errors import Unsupported

# Templates disagree on the name of the switch; all of these are set together.
THINKING_NAMES = (
    "enable_thinking",
    "enableThinking",
    "enable_reasoning",
    "use_reasoning",
    "reasoning_enabled",
    "use_thinking",
    "thinking_enabled",
    "enable_think",
    "think_enabled",
)
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")
# What belongs to the request itself; a template keyword of that name would replace it in silence.
RESERVED_NAMES = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "range")

_FORCING = ("function", "tool", "any", "required")


@dataclass(frozen=True)
class ChatRequest:
    """One rendering, as the ABI passes it: JSON texts stay texts; None or "" means not given."""

    messages_json: str
    tools_json: str | None = None
    tool_choice_json: str | None = None
    add_assistant: bool = True
    override_enable_thinking: bool = False
    enable_thinking: bool = True
    parallel_tool_calls: bool = True
    reasoning_format: str | None = None
    chat_template_kwargs: str | None = None


@dataclass(frozen=True)
class Tool:
    """One function on offer; `parameters` is its JSON schema, {} when it has none."""

    name: str
    parameters: dict[str, Any]


def read_messages(text: str) -> list[dict[str, Any]]:
    """The messages of a request, checked; arguments of tool calls parsed into objects."""
    messages = read_json(text, "messages")
    if not isinstance(messages, list):
        raise Unsupported("messages: not an array")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def map_calls(
    message: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """`message` with `change` applied to the function record of each of its tool calls."""
    if "tool_calls" not in message:
        return message
    calls = [{**call, "function": change(call["function"])} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def read_tools(text: str | None) -> tuple[list[Any] | None, tuple[Tool, ...]]:
    """The tools array as it came (None when there is none), and what we need to know of it."""
    raw = read_json(text, "tools") if text else None
    if not raw and (raw is None or isinstance(raw, list)):
        return None, ()
    if not isinstance(raw, list):
        raise Unsupported("tools: not an array")
    return raw, tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(raw))


def read_tool_choice(text: str | None, tools: tuple[Tool, ...]) -> tuple[str, tuple[Tool, ...]]:
    """The choice as one of auto, none, required; and the tools that it leaves on offer."""
    value = read_json(text, "tool_choice") if text else None
    word, function = value, None
    if isinstance(value, dict):
        word, function = value.get("type", "auto"), value.get("function")
    if word is None:
        word = "auto"
    if word in _FORCING and (isinstance(value, dict) or word == "required"):
        return "required", _forced(function, tools)
    if word not in ("auto", "none"):
        raise Unsupported(f"tool_choice: {quoted(write_json(value))} is not auto, none, required")
    return word, tools


def read_template_kwargs(request: ChatRequest) -> dict[str, Any]:
    """The names a request adds to the template's context.

    The thinking switch sets all its spellings; the request's own keywords win over those, except
    that switching thinking off always makes `reasoning_effort` 0.
    """
    names: dict[str, Any] = {}
    if request.override_enable_thinking:
        names = dict.fromkeys(THINKING_NAMES, request.enable_thinking)
    text = request.chat_template_kwargs
    given = read_json(text, "chat_template_kwargs") if text else None
    if given is not None and not isinstance(given, dict):
        raise Unsupported("chat_template_kwargs: not an object")
    for name in RESERVED_NAMES:
        if name in (given or {}):
            raise Unsupported(f"chat_template_kwargs.{name}: the request itself sets this name")
    names |= given or {}
    if request.override_enable_thinking and not request.enable_thinking:
        names["reasoning_effort"] = 0
    return names


def read_reasoning_format(name: str | None) -> str:
    """The format's name; none given means `none`, as in the reference renderer."""
    if not name:
        return "none"
    if name not in REASONING_FORMATS:
        raise Unsupported(f"reasoning_format: {quoted(name)} is not {', '.join(REASONING_FORMATS)}")
    return name


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Unsupported(f"{place}: not an object")
    if not isinstance(message.get("role"), str):
        raise Unsupported(f"{place}.role: missing or not a string")
    kept = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "content" in kept:
        kept["content"] = _content(kept["content"], f"{place}.content")
    calls = kept.pop("tool_calls", [])
    if not isinstance(calls, list):
        raise Unsupported(f"{place}.tool_calls: not an array")
    if calls:
        kept["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return kept


def _content(content: Any, place: str) -> Any:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unsupported(f"{place}: not a string, null or a list of parts")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise Unsupported(
                f"{place}[{i}]: part of type {quoted(str(kind))}, only text is served"
            )
        if not isinstance(part.get("text"), str):
            raise Unsupported(f"{place}[{i}].text: missing or not a string")
    return content or ""


def _call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Unsupported(f"{place}.function: missing or not an object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise Unsupported(f"{place}.function.name: missing or not a name")
    where = f"{place}.function.arguments"
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = read_json(arguments, where) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise Unsupported(f"{where}: not an object, nor the text of one")
    return {**call, "function": {**function, "arguments": arguments}}


def _tool(tool: Any, place: str) -> Tool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unsupported(f"{place}: not of the form type function with a function object")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise Unsupported(f"{place}.function.name: missing or not a name")
    if parameters is not None and not isinstance(parameters, dict):
        raise Unsupported(f"{place}.function.parameters: not a schema object")
    return Tool(name, parameters or {})


def _forced(function: Any, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    name = function.get("name") if isinstance(function, dict) else None
    if name is None or not tools:
        return tools
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise Unsupported(f"tool_choice: function {quoted(str(name))} is not among the tools")
    return chosen
