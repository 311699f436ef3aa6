"""Owns what a template can take, found by rendering small probes with it.

Knows nothing of the request. Templates differ in whether they read content as text or as parts,
whether they survive null or absent content, whether a call's arguments are an object or text, and
in which form they show a tool call; nothing in the model file says so. Each answer is found when
it is first needed, and kept.
"""

from typing import Any

from engine.chat.json_text import write_json
from engine.chat.messages import map_calls
from engine.chat.sandbox import Render
from engine.chat.tool_formats import FORMATS
from engine.errors import Unsupported

Message = dict[str, Any]

_ARGUMENTS = {"probe_key": "probe_value"}
_CALL = {"name": "probe_tool", "arguments": _ARGUMENTS}
_CALLS = [{"id": "probe", "type": "function", "function": _CALL}]
_PROPERTIES = {"probe_key": {"type": "string"}}
_SCHEMA = {"type": "object", "properties": _PROPERTIES}
_FUNCTION = {"name": "probe_tool", "description": "probe", "parameters": _SCHEMA}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_USER = {"role": "user", "content": "probe"}
_CALLER = {"role": "assistant", "content": "", "tool_calls": _CALLS}
_RESULT = {"role": "tool", "content": "probe", "tool_call_id": "probe"}
_PARTS = [{"type": "text", "text": "first~part"}, {"type": "text", "text": "second~part"}]

# What has to stand before and after a message of a role, and the forms such a message comes in.
_LEAD: dict[str, list[Message]] = {"system": [], "user": [], "tool": [_USER, _CALLER]}
_TAIL: dict[str, list[Message]] = {"system": [_USER]}
_FORMS: dict[str, list[Message]] = {"assistant": [{}, {"tool_calls": _CALLS}]}


class Capabilities:
    """Answers about one template, given what renders it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._known: dict[tuple[str, str], Any] = {}

    def fitted(self, messages: list[Message]) -> list[Message]:
        """`messages` with content and arguments in a form that the template renders.

        Parts the template does not read become one text, joined by newlines. Null or absent
        content that it cannot render becomes empty text. Arguments it cannot walk become text.
        """
        return [self._fitted(message) for message in messages]

    def tool_format(self) -> str:
        """The key in FORMATS of the template's own way to call tools, "" when it has none."""
        if ("tools", "") not in self._known:
            self._known["tools", ""] = self._find_tool_format()
        found: str = self._known["tools", ""]
        return found

    def _fitted(self, message: Message) -> Message:
        role, content = message["role"], message.get("content")
        missing = "null" if "content" in message else "absent"
        if isinstance(content, list) and not self._takes("parts", role):
            message = {**message, "content": "\n".join(part["text"] for part in content)}
        elif content is None and not self._takes(missing, role):
            message = {**message, "content": ""}
        if "tool_calls" in message and not self._takes("objects", "assistant"):
            message = map_calls(message, _text_arguments)
        return message

    def _takes(self, what: str, role: str) -> bool:
        key = (what, role)
        if key not in self._known:
            self._known[key] = all(
                self._survives(what, {"role": role, **form}) for form in _FORMS.get(role, [{}])
            )
        known: bool = self._known[key]
        return known

    def _survives(self, what: str, message: Message) -> bool:
        """Whether the form renders, and renders without Python's spelling of it showing."""
        if what == "parts":
            text = self._try_one({**message, "content": _PARTS})
            return text is not None and "first~part" in text and "'type'" not in text
        if what == "objects":
            text = self._try([_USER, _CALLER, _RESULT])
            return text is not None and "{'probe_key'" not in text
        plain = self._try_one({**message, "content": ""})
        if plain is None:
            # The template refuses the role itself, and its own words are the better answer.
            return True
        text = self._try_one(message if what == "absent" else {**message, "content": None})
        return text is not None and text.count("None") == plain.count("None")

    def _find_tool_format(self) -> str:
        offered = self._try([_USER], tools=_TOOLS)
        if offered is None or "probe_tool" not in offered:
            return ""
        text = self._try([_USER, _CALLER, _RESULT, _USER], tools=_TOOLS) or offered
        return next((key for key, row in FORMATS.items() if row.shown.search(text)), "")

    def _try_one(self, message: Message) -> str | None:
        role = message["role"]
        return self._try([*_LEAD.get(role, [_USER]), message, *_TAIL.get(role, [])])

    def _try(self, messages: list[Message], tools: list[Any] | None = None) -> str | None:
        names = {"messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            return self._render(names)
        except Unsupported:
            return None


def _text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": write_json(function["arguments"])}
