"""Owns a model's chat template: from a request to the prompt and its metadata.

Knows nothing of sessions or sampling. Contract: section 4.1 of the ABI's semantics. A rendering is
wanted twice for each request, first for its length, so the last few are kept; that also keeps a
template that prints the time from changing its mind in between.
"""

import hashlib
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.chat.capabilities import Capabilities
from engine.chat.json_text import check_text
from engine.chat.messages import (
    ChatRequest,
    read_messages,
    read_reasoning_format,
    read_template_kwargs,
    read_tool_choice,
    read_tools,
)
from engine.chat.metadata import RequestFacts, write_metadata
from engine.chat.reasoning import CLOSE, OPEN
from engine.chat.sandbox import Renderer

N_KEPT = 8
KEPT_SECONDS = 60.0


@dataclass(frozen=True)
class RenderedChat:
    """Prompt text and metadata JSON, both valid UTF-8 without NUL."""

    prompt: str
    metadata_json: str


class ChatTemplate:
    """A template and the vocabulary's special texts; may be used from several threads at once.

    `adds_bos` says that the tokenizer puts BOS in front on its own, and the prompt then leaves it
    out. Making one never fails: a template that does not compile is refused when it is used.
    What a hostile template can and cannot do is written in `engine.chat.sandbox`.
    """

    def __init__(self, source: str, *, bos_text: str, eos_text: str, adds_bos: bool) -> None:
        self._source = source
        self._names = {"bos_token": bos_text, "eos_token": eos_text}
        self._unwanted_start = bos_text if adds_bos else ""
        self._lock = threading.Lock()
        self._kept: OrderedDict[ChatRequest, tuple[float, RenderedChat]] = OrderedDict()

    def render(self, request: ChatRequest) -> RenderedChat:
        """The prompt and its metadata. Raises Unsupported, naming the place, for every failure."""
        with self._lock:
            kept = self._kept.get(request)
        if kept and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        rendered = self._rendered(request)
        with self._lock:
            self._kept[request] = (time.monotonic(), rendered)
            self._kept.move_to_end(request)
            while len(self._kept) > N_KEPT:
                self._kept.popitem(last=False)
        return rendered

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self._source)

    @cached_property
    def _capabilities(self) -> Capabilities:
        return Capabilities(self._text)

    def _text(self, names: dict[str, Any]) -> str:
        return self._renderer({**self._names, **names}).removeprefix(self._unwanted_start)

    def _rendered(self, request: ChatRequest) -> RenderedChat:
        reasoning_format = read_reasoning_format(request.reasoning_format)
        raw_tools, tools = read_tools(request.tools_json)
        tool_choice, tools = read_tool_choice(request.tool_choice_json, tools)
        names = read_template_kwargs(request)
        messages = read_messages(request.messages_json)
        names |= {"messages": self._capabilities.fitted(messages), "tools": raw_tools}
        prompt = self._text({**names, "add_generation_prompt": request.add_assistant})
        check_text(prompt, "chat template: prompt")
        opened = ""
        if request.add_assistant:
            opened = _thinking_part(prompt, self._text({**names, "add_generation_prompt": False}))
        facts = RequestFacts(
            reasoning_format=reasoning_format,
            generation_prompt=opened,
            in_thinking=OPEN in opened and CLOSE not in opened,
            native_format=self._capabilities.tool_format() if tools else "",
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            seed=hashlib.sha256(prompt.encode()).hexdigest()[:16],
        )
        return RenderedChat(prompt, write_metadata(facts))


def _thinking_part(prompt: str, history: str) -> str:
    """What the template put after the assistant opener: its end from the first thinking tag on."""
    n_shared = min(len(prompt), len(history))
    if not prompt.startswith(history):
        n_shared = next((i for i in range(n_shared) if prompt[i] != history[i]), n_shared)
    tail = prompt[n_shared:]
    tag = re.search(f"{OPEN}|{CLOSE}", tail)
    return tail[tag.start() :] if tag else ""
