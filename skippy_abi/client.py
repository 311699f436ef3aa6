"""Owns a caller of the C ABI from Python: opens the libraries as a host does and makes its calls.

It is the path of the command line and of the FFI tests, so that both go through the same exports
as a native host: cffi in ABI mode, libraries opened RTLD_LAZY | RTLD_LOCAL in order, symbols
searched from the last one backwards, sizes asked before bytes. It must not know the engine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cffi import FFI

from engine.errors import ModelError, Status
from skippy_abi import generate, table


class AbiError(Exception):
    """A call that did not answer OK: its status and the error object's message."""

    def __init__(self, name: str, status: int, message: str | None) -> None:
        super().__init__(f"{name}: {Status(status).name}: {message}")
        self.name = name
        self.status = Status(status)
        self.message = message


class Host:
    """The loaded libraries. `ffi` makes C values; `call` makes a checked call."""

    def __init__(self, libraries: Sequence[Path]) -> None:
        abi = table.load()
        self.ffi: Any = FFI()
        self.ffi.cdef(generate.types(abi))
        prototypes = "\n".join(f"{s.returns} {s.prototype};" for s in abi.symbols)
        self.ffi.cdef(prototypes)
        flags = os.RTLD_LAZY | os.RTLD_LOCAL
        self._libraries = [self.ffi.dlopen(str(path), flags) for path in libraries]
        self._symbols: dict[str, Any] = {}
        version = self.symbol("skippy_abi_version")()
        found = (version.major, version.minor, version.patch)
        if found != abi.version:
            raise ModelError(f"libraries speak ABI {found}, this client {abi.version}")

    def symbol(self, name: str) -> Any:
        """The last library's function of that name; AttributeError when none has it."""
        if name not in self._symbols:
            for library in reversed(self._libraries):
                if hasattr(library, name):
                    self._symbols[name] = getattr(library, name)
                    break
            else:
                raise AttributeError(name)
        return self._symbols[name]

    def raw(self, name: str, *args: Any) -> tuple[int, str | None]:
        """Status and message of a call; `out_error` is added, and its object freed."""
        out_error = self.ffi.new("struct skippy_error **")
        status = int(self.symbol(name)(*args, out_error))
        error = out_error[0]
        if error == self.ffi.NULL:
            return status, None
        text = error.message
        message = None if text == self.ffi.NULL else self.ffi.string(text).decode()
        self.symbol("skippy_error_free")(error)
        return status, message

    def call(self, name: str, *args: Any) -> None:
        """A call that must answer OK; AbiError otherwise."""
        status, message = self.raw(name, *args)
        if status != Status.OK:
            raise AbiError(name, status, message)

    def sized(self, name: str, *args: Any, item: str = "char") -> Any:
        """A call that ends in (buffer, capacity, counter): first the size, then the items."""
        counter = self.ffi.new("size_t *")
        status, message = self.raw(name, *args, self.ffi.NULL, 0, counter)
        if status not in (Status.OK, Status.BUFFER_TOO_SMALL):
            raise AbiError(name, status, message)
        capacity = max(counter[0], 1)
        buffer = self.ffi.new(f"{item}[]", capacity)
        self.call(name, *args, buffer, capacity, counter)
        return self.ffi.buffer(buffer, counter[0] * self.ffi.sizeof(item))

    def text(self, value: str | None) -> Any:
        """A C string, or NULL."""
        return self.ffi.NULL if value is None else self.ffi.new("char[]", value.encode())

    def sampling(self, **fields: Any) -> Any:
        """An enabled sampling config with neutral values, changed by `fields`."""
        values = {
            "version": 1, "flags": 1, "penalty_last_n": -1, "temperature": 1.0, "top_p": 1.0,
            "repeat_penalty": 1.0, **fields,
        }
        bias = values.pop("logit_bias", ())
        config = self.ffi.new("struct skippy_sampling_config *", values)
        config.logit_bias_count = len(bias)
        for entry, (token, amount) in zip(config.logit_bias, bias, strict=False):
            entry.token, entry.bias = token, amount
        return config


class OpenModel:
    """An open model: text calls, and sessions."""

    def __init__(
        self, host: Host, path: Path | bytes, device: str | None = None, **config: Any
    ) -> None:
        """`config` are fields of the runtime's configuration; `device` a name of the inventory."""
        self.host = host
        values = {"lane_count": 1, "ctx_size": 4096, "n_batch": 2048, "include_embeddings": True,
                  "include_output": True, "flash_attn_type": -1, "n_gpu_layers": -1, **config}
        out = host.ffi.new("struct skippy_model **")
        raw_path = path if isinstance(path, bytes) else str(path).encode()
        name = None if device is None else host.ffi.new("char[]", device.encode())
        if name is not None:
            values["selected_backend_device"] = name
        made = host.ffi.new("struct skippy_runtime_config *", values)
        host.call("skippy_model_open", host.ffi.new("char[]", raw_path), made, out)
        self.handle = out[0]

    def free(self) -> None:
        """Close the model."""
        self.host.call("skippy_model_free", self.handle)

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text."""
        raw = self.host.sized(
            "skippy_tokenize", self.handle, self.host.text(text), add_special, item="int32_t"
        )
        return list(self.host.ffi.from_buffer("int32_t[]", raw))

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes of token ids."""
        ids = self.host.ffi.new("int32_t[]", list(tokens))
        return bytes(self.host.sized("skippy_detokenize", self.handle, ids, len(tokens)))

    def is_eog(self, token: int) -> bool:
        """Whether generation ends with this token."""
        out = self.host.ffi.new("bool *")
        self.host.call("skippy_token_is_eog", self.handle, token, out)
        return bool(out[0])

    def template(
        self, messages_json: str, *, tools_json: str | None = None,
        tool_choice_json: str | None = None, add_assistant: bool = True,
        thinking: bool | None = None, parallel_tool_calls: bool = True,
        reasoning_format: str | None = "auto", kwargs_json: str | None = None,
    ) -> tuple[str, str]:
        """Prompt text and metadata JSON of a chat request; `thinking` None leaves the default."""
        host, ffi = self.host, self.host.ffi
        args = [
            self.handle, host.text(messages_json), host.text(tools_json),
            host.text(tool_choice_json), add_assistant, thinking is not None,
            thinking is not False, parallel_tool_calls, host.text(reasoning_format),
            host.text(kwargs_json),
        ]
        name = "skippy_apply_chat_template_json"
        sizes = ffi.new("size_t[2]")
        status, message = host.raw(name, *args, ffi.NULL, 0, sizes, ffi.NULL, 0, sizes + 1)
        if status != Status.BUFFER_TOO_SMALL:
            raise AbiError(name, status, message)
        prompt, metadata = (ffi.new("char[]", max(n, 1)) for n in sizes)
        room = [max(n, 1) for n in sizes]
        host.call(name, *args, prompt, room[0], sizes, metadata, room[1], sizes + 1)
        texts = [bytes(ffi.buffer(b, n)) for b, n in zip((prompt, metadata), sizes, strict=True)]
        return texts[0].decode(), texts[1].decode()

    def parse(self, text: bytes, metadata_json: str, *, is_partial: bool) -> str:
        """The assistant message JSON of generated text."""
        raw = self.host.sized(
            "skippy_parse_chat_response_json", self.host.ffi.new("char[]", text),
            self.host.text(metadata_json), is_partial,
        )
        return bytes(raw).decode()

    def session(self) -> OpenSession:
        """A new session."""
        out = self.host.ffi.new("struct skippy_session **")
        self.host.call("skippy_session_create", self.handle, out)
        return OpenSession(self, out[0])


class OpenSession:
    """A session's calls, as the plain chat path uses them."""

    def __init__(self, model: OpenModel, handle: Any) -> None:
        self.model = model
        self.host = model.host
        self.handle = handle
        self._token = self.host.ffi.new("int32_t *")

    def free(self) -> None:
        """Give the lane back."""
        self.host.call("skippy_session_free", self.handle)

    def reset(self) -> None:
        """Empty the session."""
        self.host.call("skippy_session_reset", self.handle)

    @property
    def position(self) -> int:
        """Tokens evaluated so far."""
        return int(self.host.symbol("skippy_session_position")(self.handle))

    def prefill(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens without choosing one."""
        ffi = self.host.ffi
        ids = ffi.new("int32_t[]", list(tokens))
        self.host.call("skippy_prefill_chunk", self.handle, ids, len(tokens), ffi.NULL, 0,
                       ffi.NULL, 0, ffi.NULL)

    def prefill_sampled(self, tokens: Sequence[int], sampling: Any = None) -> int:
        """Evaluate a whole prompt and choose the first token."""
        ffi = self.host.ffi
        ids = ffi.new("int32_t[]", list(tokens))
        self.host.call("skippy_prefill_chunk_frame_sampled", self.handle, ids, len(tokens),
                       sampling or ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL, 0, ffi.NULL,
                       self._token)
        return int(self._token[0])

    def decode(self, token: int, sampling: Any = None) -> int:
        """Feed one token through the batch call, as the host does, and choose the next."""
        ffi = self.host.ffi
        handles = ffi.new("struct skippy_session *[1]", [self.handle])
        configs = ffi.new("struct skippy_sampling_config *[1]", [sampling or ffi.NULL])
        self.host.call("skippy_decode_batch_sampled", handles, ffi.new("int32_t[1]", [token]),
                       configs, 1, self._token, 1)
        return int(self._token[0])

    def configure_chat(
        self, metadata_json: str, n_prompt_tokens: int, sampling: Any = None
    ) -> None:
        """Fix the sampling of one chat request."""
        self.host.call("skippy_session_configure_chat_sampling", self.handle,
                       sampling or self.host.ffi.NULL, self.host.text(metadata_json),
                       n_prompt_tokens)
