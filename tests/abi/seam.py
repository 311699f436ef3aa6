"""Owns good calls of every export, made from the ABI table, for tests that spoil one argument.

`Seam.good` gives the arguments of a call that is right; everything hostile starts from there. It
knows types and parameter names, no rule of any call besides the few in `VALUES`.
"""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import Status
from skippy_abi import client, table
from skippy_abi.table import Symbol

ABI = table.load()
SYMBOLS = {symbol.name: symbol for symbol in ABI.served}
HANDLES = {
    "struct skippy_model *": "model", "struct skippy_session *": "session",
    "struct skippy_ngram_cache *": "cache", "struct skippy_model_info *": "info",
    "struct skippy_slice_plan *": "plan",
}
ROOM = 1 << 16
N_TOKENS = 3
PREFIX_ID = 8
# Nothing is mapped there: the first page, user space's end, the kernel's half.
UNMAPPED = (0x18, 0x7FFF_FFFF_F000, 0xFFFF_8000_0000_0000)
MESSAGES = b'[{"role":"user","content":"hi"}]'
# The plain calls and the whole model ignore these, whatever they point to.
IGNORED = {
    "input_activations", "input_activation", "output_activations", "output_activation",
    "input_payload", "output_payload", "input_payloads", "output_payloads",
    "output_payload_capacities", "positions",
}
VALUES: Mapping[str, Any] = {
    "token_count": N_TOKENS, "continuation_prefix_count": N_TOKENS, "token_id": 5,
    "position_count": N_TOKENS, "request_count": 1, "path_count": 1, "input_count": 1,
    "predicted_token_capacity": 4, "output_token_capacity": ROOM // 4, "layer_end": 2,
    "cache_seq_id": PREFIX_ID, "seq_id": PREFIX_ID, "ngram_min": 1, "ngram_max": 3,
    "max_draft_tokens": 4, "window_tokens": 4, "n_past": 2, "text": b"the then",
    "messages_json": MESSAGES, "metadata_json": b"{}", "generated_text": b"hi",
}
# What a good call answers where it is not OK.
OUTCOMES = {
    "skippy_session_copy_output_activation_frame": Status.UNSUPPORTED,
    "skippy_model_attach_mtp_draft_model": Status.INVALID_ARGUMENT,
}


def is_handle(c_type: str) -> bool:
    return c_type.removeprefix("const ") in HANDLES


def is_pointer(c_type: str) -> bool:
    return c_type.endswith("*") and not is_handle(c_type)


def is_output(name: str, c_type: str) -> bool:
    """Whether the call writes there."""
    return is_pointer(c_type) and not c_type.startswith("const ") and "const *" not in c_type


class Seam:
    """A tiny model with one of each handle, and calls by name with some arguments changed."""

    def __init__(self, host: client.Host, path: Path, out: Path, **config: Any) -> None:
        self.host, self.ffi, self.path, self.out = host, host.ffi, path, out
        self.model = client.OpenModel(
            host, path, **{"lane_count": 4, "ctx_size": 256, "n_batch": 64, **config}
        )
        self.session = self.model.session()
        _, metadata = self.model.template(MESSAGES.decode())
        self.metadata = metadata.encode()
        self.kept: list[Any] = []
        self.handles = {
            "model": self.model.handle, "session": self.session.handle,
            "cache": self._made("skippy_ngram_cache_create", "skippy_ngram_cache", 1, 3),
            "info": self._made("skippy_model_info_open", "skippy_model_info", self.text(path)),
        }
        self.handles["plan"] = self._made(
            "skippy_slice_plan_create", "skippy_slice_plan", self.handles["info"]
        )
        host.call("skippy_slice_plan_add_layer_range", self.handles["plan"], 0, 0, 2, True, True)

    def text(self, value: bytes | str | Path) -> Any:
        """A C string that stays alive."""
        raw = value if isinstance(value, bytes) else str(value).encode()
        return self.keep(self.ffi.new("char[]", raw))

    def keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def _made(self, name: str, kind: str, *args: Any) -> Any:
        out = self.ffi.new(f"struct {kind} **")
        self.host.call(name, *args, out)
        return out[0]

    def close(self) -> None:
        for key in ("plan", "info", "cache"):
            name = {"plan": "slice_plan", "info": "model_info", "cache": "ngram_cache"}[key]
            free = self.host.symbol(f"skippy_{name}_free")
            free(self.handles[key], *([self.ffi.NULL] if key != "cache" else []))
        self.model.free()

    def fresh(self) -> None:
        """The session back to 8 tokens with logits and a saved prefix."""
        self.kept.clear()
        self.session.reset()
        self.session.prefill([1, 2, 3, 4, 5, 6, 7])
        self.session.decode(8)
        history = self.keep(self.ffi.new("int32_t[]", [5, 6, 7] * 3))
        self.host.call("skippy_ngram_cache_reset", self.handles["cache"], history, 9)
        self.host.call("skippy_session_save_prefix", self.session.handle, PREFIX_ID, 5)

    def good(self, symbol: Symbol) -> dict[str, Any]:
        """Arguments by name, without `out_error`, of a call that is right."""
        args = {
            p.name: self._good(symbol.name, p.name, p.c_type)
            for p in symbol.params if p.name != "out_error"
        }
        if symbol.name == "skippy_import_kv_page":
            desc, data = self.page()
            args |= {"desc": desc, "input": data, "input_bytes": len(data)}
        elif symbol.name in ("skippy_import_state", "skippy_import_full_state"):
            raw = self.host.sized("skippy_export_state", self.session.handle, 0, 2)
            args |= {"input": self.keep(self.ffi.from_buffer("char[]", raw)),
                     "input_bytes": len(raw)}
        elif symbol.name == "skippy_import_recurrent_state":
            args["input_bytes"] = 0
        elif symbol.name == "skippy_parse_chat_response_json":
            args["metadata_json"] = self.text(self.metadata)
        elif symbol.name.startswith("skippy_slice_plan_add"):
            args["layer_end"] = 1
        return args

    def page(self) -> tuple[Any, Any]:
        """Descriptor and bytes of the session's first three tokens."""
        desc, counter = self.ffi.new("struct skippy_kv_page_desc *"), self.ffi.new("size_t *")
        room = self.ffi.new("char[]", ROOM)
        self.host.call("skippy_export_kv_page", self.session.handle, 0, 2, 0, N_TOKENS, desc,
                       room, ROOM, counter)
        data = self.ffi.new("char[]", bytes(self.ffi.buffer(room, counter[0])))
        return self.keep(desc), self.keep(self.ffi.cast(f"char[{counter[0]}]", data))

    def _good(self, symbol: str, name: str, c_type: str) -> Any:
        ffi = self.ffi
        if is_handle(c_type):
            return self.handles[HANDLES[c_type.removeprefix("const ")]]
        if name == "sessions":
            return self.keep(ffi.new("struct skippy_session *[]", [self.session.handle]))
        if name in ("path", "output_path"):
            return self.text(self.path if name == "path" else self.out / "written.gguf")
        if name in ("paths", "input_paths"):
            return self.keep(ffi.new("char *[]", [self.text(self.path)]))
        if name in ("config",):
            return self.config()
        if name == "text" or name.endswith("_json") or name == "generated_text":
            return self.text(VALUES[name]) if name in VALUES else self._buffer(name)
        if name in VALUES:
            return VALUES[name]
        if c_type == "const int32_t *":
            return self.keep(ffi.new("int32_t[]", [5, 6, 7]))
        if is_output(name, c_type):
            return self._output(c_type)
        if c_type in ("size_t", "uint64_t", "uint32_t"):
            return ROOM if name.endswith("capacity") else 0
        return ffi.NULL if c_type.endswith("*") else 0

    def config(self, **changed: Any) -> Any:
        """A small runtime config."""
        values = {"lane_count": 1, "ctx_size": 32, "include_embeddings": True,
                  "include_output": True, **changed}
        return self.keep(self.ffi.new("struct skippy_runtime_config *", values))

    def _buffer(self, name: str) -> Any:
        return self.keep(self.ffi.new("char[]", ROOM)) if name.startswith("output") else (
            self.ffi.NULL
        )

    def _output(self, c_type: str) -> Any:
        item = c_type.removesuffix("*").strip()
        sized = {"void": "char", "char": "char"}.get(item)
        return self.keep(
            self.ffi.new("char[]", ROOM) if sized else self.ffi.new(f"{item}[]", ROOM // 64)
        )

    def run(self, symbol: Symbol, args: Mapping[str, Any]) -> tuple[Any, str | None]:
        """The call's result and message; what an open or create made is freed again."""
        values = [args[p.name] for p in symbol.params if p.name != "out_error"]
        function = self.host.symbol(symbol.name)
        if not symbol.is_status:
            return function(*values), None
        status, message = self.host.raw(symbol.name, *values)
        if status == Status.OK:
            self._free_made(symbol, args)
        return status, message

    def _free_made(self, symbol: Symbol, args: Mapping[str, Any]) -> None:
        for p in symbol.params:
            if p.c_type.endswith("**") and p.name not in ("out_error", "sessions"):
                kind = p.c_type.removeprefix("struct ").split(" ")[0]
                if not kind.startswith("skippy_"):
                    continue
                free = self.host.symbol(f"{kind}_free")
                free(args[p.name][0], *([self.ffi.NULL] if "ngram" not in kind else []))

    def state(self) -> tuple[int, bytes]:
        """Position and all exported bytes of the session."""
        raw = self.host.sized("skippy_export_state", self.session.handle, 0, 2)
        return self.session.position, bytes(raw)


def live_handles() -> int:
    """Entries of the handle table; the library shares this process's Python."""
    # Importable only once the library is loaded.
    from skippy_abi import handles

    return handles.live()


@contextmanager
def seam(host: client.Host, path: Path, out: Path) -> Iterator[Seam]:
    """A seam that is closed again, and leaves no handle behind."""
    # The first call starts the library's Python part.
    host.symbol("skippy_session_position")(host.ffi.NULL)
    before = live_handles()
    made = Seam(host, path, out)
    yield made
    made.close()
    assert live_handles() == before


def read_only_page(ffi: Any) -> tuple[Any, Any]:
    """A pointer that can be read and not written, and what keeps it alive."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    return ffi.cast("void *", ffi.from_buffer(page)), page
