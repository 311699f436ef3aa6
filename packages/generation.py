"""Owns one generation from the command line: the plain chat path of a host, through the C ABI.

It makes the calls a native host makes, in that order, and hands out whole characters only. It must
not reach around the ABI into the engine.
"""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from abi_stubs import stubs
from engine.artifacts.gguf import open_gguf
from packages.select import device_for, is_mspec, select
from packages.selection import Match
from skippy_abi import build
from skippy_abi.client import Host, OpenModel

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Request:
    """What to generate; temperature 0 is greedy, `seed` None then."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int | None
    raw: bool = False


@dataclass
class Generation:
    """What was generated, and how long its parts took in seconds."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    n_prompt_tokens: int = 0
    stop: str = "length"
    device: str = "none"
    open_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0

    @classmethod
    def empty(cls) -> Generation:
        """A budget of nothing generates nothing and touches nothing."""
        return cls()

    def timings(self) -> str:
        """One line for people."""
        rate = (len(self.tokens) - 1) / self.decode_s if self.decode_s else 0.0
        return (
            f"device {self.device}; open {self.open_s:.2f} s; "
            f"{self.n_prompt_tokens} prompt tokens, first token after {self.first_token_s:.2f} s; "
            f"{len(self.tokens)} tokens, {rate:.1f} tokens/s; stopped by {self.stop}"
        )

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "text": self.text, "tokens": self.tokens, "n_prompt_tokens": self.n_prompt_tokens,
            "stop": self.stop, "device": self.device, "open_s": self.open_s,
            "first_token_s": self.first_token_s, "decode_s": self.decode_s,
        }


class Runtime:
    """The loaded libraries and what a generation needs of them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def generate(
        self, path: Path, request: Request, show: Callable[[str], None]
    ) -> Generation:
        """Open the model, answer, close; `show` gets the text as it becomes whole."""
        match = select(str(path)).match
        name = device_for(match.target) if match else None
        result = Generation(device=self._shown(name))
        started = time.perf_counter()
        model = OpenModel(
            self._host, path, name, ctx_size=_context(path, match), n_batch=2048
        )
        result.open_s = time.perf_counter() - started
        session = model.session()
        try:
            prompt, metadata = self._prompt(model, request)
            tokens = model.tokenize(prompt)
            result.n_prompt_tokens = len(tokens)
            sampling = None
            if request.temperature > 0:
                sampling = self._host.sampling(temperature=request.temperature)
                metadata["sampler"] = {"temperature": repr(request.temperature),
                                       "seed": str(request.seed)}
            session.configure_chat(json.dumps(metadata), len(tokens), sampling)
            started = time.perf_counter()
            token = session.prefill_sampled(tokens)
            result.first_token_s = time.perf_counter() - started
            self._continue(model, session, token, request, result, show)
        finally:
            session.free()
            model.free()
        return result

    def _continue(
        self, model: OpenModel, session: Any, token: int, request: Request, result: Generation,
        show: Callable[[str], None],
    ) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        started = time.perf_counter()
        n_shown = 0
        while True:
            if model.is_eog(token):
                result.stop = "end of text"
                break
            result.tokens.append(token)
            raw = model.detokenize(result.tokens)
            piece = decoder.decode(raw[n_shown:])
            n_shown = len(raw)
            result.text += piece
            show(piece)
            if len(result.tokens) >= request.max_tokens:
                break
            token = session.decode(token)
        result.decode_s = time.perf_counter() - started
        tail = decoder.decode(b"", final=True)
        result.text += tail
        show(tail)

    def _prompt(self, model: OpenModel, request: Request) -> tuple[str, dict[str, Any]]:
        if request.raw:
            return request.prompt, {"grammar": ""}
        messages = json.dumps([{"role": "user", "content": request.prompt}])
        prompt, metadata = model.template(messages)
        return prompt, json.loads(metadata)

    def _shown(self, name: str | None) -> str:
        """A device of the library's inventory with its description; the first one for None."""
        ffi = self._host.ffi
        device, count = ffi.new("struct skippy_backend_device *"), ffi.new("size_t *")
        self._host.call("skippy_backend_device_count", count)
        for index in range(count[0]):
            self._host.call("skippy_backend_device_at", index, device)
            found = ffi.string(device.name).decode()
            if name in (None, found):
                return f"{found} ({ffi.string(device.description).decode()})"
        return str(name)


def open_runtime(folder: Path) -> Runtime:
    """Build the libraries into `folder` unless they are there, and load them as a host does."""
    engine = build.build_engine(folder)
    return Runtime(Host([stubs.build(folder), engine]))


def _context(path: Path, match: Match | None) -> int:
    """The model's own context, up to the default."""
    if is_mspec(os.fsencode(path)):
        return min(match.artifact.dims.n_context, DEFAULT_CONTEXT) if match else DEFAULT_CONTEXT
    with open_gguf(path) as file:
        key = f"{file.get('general.architecture', '')}.context_length"
        return min(int(file.get(key, DEFAULT_CONTEXT)), DEFAULT_CONTEXT)
