"""Owns the arguments of the fuzzer: at random, right and hostile mixed, for any export.

What a host must not do, they do not do either: callbacks are NULL or functions, and capacities
never exceed the memory behind an output that is really written. Long because it knows every kind
of parameter.
"""

import mmap
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skippy_abi.client import Host
from skippy_abi.table import Symbol
from tests.abi.seam import HANDLES, UNMAPPED, is_handle, is_output, is_pointer

ROOM = 1 << 18
SMALL_INTS = (1, 2, 3, 7, 8, 16, 255, 4095, 4096)
BIG = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    b"", b"the then", b"hello", b"\xff\xfe", b"\xed\xa0\xbd", b"null", b"{}", b"[]", b'"none"',
    b'[{"role":"user","content":"hi"}]', b'[{"role":"assistant","content":null}]',
    b'{"grammar":"root ::= \\"a\\""}', b'{"grammar":"","sampler":{"seed":"7"}}', b"auto",
    b"[" * 999,
    b'[{"type":"function","function":{"name":"f"}}]', "é漢🦙".encode(), b"%s%n", b"a" * 3000,
)


class Arguments:
    """Live handles by kind, and arguments for calls on them."""

    def __init__(self, host: Host, model: Path, folder: Path, seed: int) -> None:
        self.host, self.ffi, self.rng = host, host.ffi, random.Random(seed)
        self.model, self.folder = model, folder
        self.live: dict[str, list[Any]] = {kind: [] for kind in HANDLES.values()}
        self.dead: list[Any] = []
        self.kept: list[Any] = []
        self.outputs = [self.ffi.new("char[]", ROOM) for _ in range(6)]
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
        self.read_only = self.ffi.cast("char *", self.ffi.from_buffer(page))
        self.callback = self.ffi.callback(
            "void(const struct skippy_runtime_event_v1 *, void *)", lambda event, data: None
        )
        self.metadata, self.state, self.page = b"{}", b"", (bytes(224), b"")

    def maybe(self, percent: float) -> bool:
        return self.rng.random() * 100 < percent

    def wild(self) -> int:
        """An address that nobody may use, and that nothing lives at."""
        return self.rng.choice((*UNMAPPED, *SMALL_INTS, 0x5E50_0000_0000_0000, 2**64 - 1, 2**63))

    def argument(self, symbol: Symbol, name: str, c_type: str) -> Any:
        ffi = self.ffi
        if is_handle(c_type):
            return self.handle(c_type)
        if not is_pointer(c_type):
            return self.number(name, c_type)
        if self.maybe(6):
            return ffi.cast("void *", 0 if self.maybe(40) else self.wild())
        if name == "sampling":
            return self.array(self.sampling) if "* const" in c_type else self.sampling()
        if name in MAKERS:
            return MAKERS[name](self)
        if c_type == "const char *":
            return self.text()
        if c_type == "const int32_t *":
            return self.keep(ffi.new("int32_t[]", [self.token() for _ in range(64)]))
        if is_output(name, c_type) or "**" in c_type:
            return self.output()
        return ffi.NULL if self.maybe(80) else self.random_struct(c_type)

    def keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def token(self) -> int:
        return self.rng.choice((-1, 320, 2**31 - 1)) if self.maybe(0.3) else self.rng.randrange(320)

    def number(self, name: str, c_type: str) -> Any:
        if c_type == "bool":
            return self.maybe(50)
        limits = {"int32_t": (-(2**31), 2**31 - 1), "uint16_t": (0, 2**16 - 1),
                  "uint32_t": (0, 2**32 - 1)}.get(c_type, (0, 2**64 - 1))
        if name == "max_draft_tokens":
            value = self.rng.choice((0, 1, 8, 300))
        elif name.endswith(("capacity", "capacities")):
            value = self.rng.choice((0, 1, 64, ROOM // 4, ROOM // 4))
            value = self.rng.choice(BIG) if self.maybe(5) else value
        elif name.endswith("seq_id"):
            value = self.rng.randint(0, 12)
        elif self.maybe(8):
            value = self.rng.choice((*BIG, -1, -(2**31)))
        else:
            value = self.rng.choice((0, 1, 1, 2, 2, 3, 4, 7, 16, 30, 64))
        return min(max(value, limits[0]), limits[1])

    def handle(self, c_type: str) -> Any:
        kind = HANDLES[c_type.removeprefix("const ")]
        if self.live[kind] and self.maybe(88):
            return self.rng.choice(self.live[kind])
        number = self.wild()
        choice = self.rng.randrange(5)
        if choice == 0 and self.dead:
            return self.ffi.cast(c_type, self.rng.choice(self.dead))
        others = [h for handles in self.live.values() for h in handles]
        if choice == 1 and others:
            number = int(self.ffi.cast("uintptr_t", self.rng.choice(others)))
        elif choice == 2 and others:
            number = int(self.ffi.cast("uintptr_t", self.rng.choice(others))) + 8
        elif choice == 3:
            number = 0
        return self.ffi.cast(c_type, number)

    def output(self) -> Any:
        if self.maybe(4):
            return self.read_only
        base = self.ffi.cast("char *", self.rng.choice(self.outputs))
        return base + (self.rng.randrange(1, 16) if self.maybe(4) else 0)

    def text(self) -> Any:
        choice = self.rng.randrange(10)
        if choice == 0:
            raw = self.rng.randbytes(self.rng.randrange(80)).replace(b"\0", b"")
        elif choice == 1:
            raw = bytearray(self.rng.choice(TEXTS) or b"x")
            raw[self.rng.randrange(len(raw))] = self.rng.randrange(1, 256)
        elif choice == 2:
            raw = self.metadata
        else:
            raw = self.rng.choice(TEXTS)
        return self.keep(self.ffi.new("char[]", bytes(raw)))

    def path(self) -> Any:
        if self.maybe(50):
            return self.keep(self.ffi.new("char[]", bytes(self.model)))
        if self.maybe(50):
            return self.keep(self.ffi.new("char[]", bytes(self.folder / "garbage.gguf")))
        return self.text()

    def output_path(self) -> Any:
        name = self.rng.choice((b"a.gguf", b"b.gguf", b"no/where.gguf", b"\xff\xfe", b"n" * 300))
        return self.keep(self.ffi.new("char[]", bytes(self.folder) + b"/out/" + name))

    def array(self, item: Callable[[], Any]) -> Any:
        pointers = [self.ffi.cast("void *", item()) for _ in range(64)]
        return self.keep(self.ffi.new("void *[]", pointers))

    def sessions(self) -> Any:
        live = list(dict.fromkeys(self.live["session"]))
        self.rng.shuffle(live)
        rest = [self.handle("struct skippy_session *") for _ in range(64)]
        pointers = [self.ffi.cast("void *", h) for h in [*live, *rest][:64]]
        return self.keep(self.ffi.new("void *[]", pointers))

    def random_struct(self, c_type: str) -> Any:
        struct = c_type.removeprefix("const ").removesuffix("*").strip()
        if not struct.startswith("struct "):
            return self.output()
        made = self.keep(self.ffi.new(f"{struct} *"))
        buffer = self.ffi.buffer(made)
        buffer[:] = self.rng.randbytes(len(buffer))
        return made

    def sampling(self) -> Any:
        choice = self.rng.randrange(3)
        if choice == 0:
            return self.ffi.NULL
        if choice == 1:
            made = self.random_struct("struct skippy_sampling_config *")
            made.version, made.flags = self.rng.randrange(3), self.rng.randrange(2)
            return made
        return self.keep(self.host.sampling(
            seed=self.rng.randrange(9), temperature=self.rng.choice((0.0, 0.8, 1e-30)),
            top_k=self.rng.choice((0, 5, 400)), repeat_penalty=self.rng.choice((1.0, 1.2)),
            logit_bias=[(self.token(), -float("inf"))] * self.rng.randrange(3),
        ))

    def config(self) -> Any:
        if self.maybe(10):
            return self.ffi.NULL
        made = self.random_struct("struct skippy_runtime_config *")
        if self.maybe(70):
            self.ffi.buffer(made)[:] = bytes(self.ffi.sizeof(made[0]))
            made.include_output = made.include_embeddings = True
            made.lane_count = self.rng.choice((0, 1, 3, 4))
        # Small, or so large that it must be refused before anything is allocated.
        made.ctx_size = self.rng.choice((0, -1, 1, 40, 64, 200, 2**31 - 1, 2**31 - 17))
        return made

    def reporter(self) -> Any:
        if self.maybe(20):
            return self.ffi.NULL
        callback = self.callback if self.maybe(80) else self.ffi.NULL
        return self.keep(self.ffi.new("struct skippy_runtime_event_reporter_v1 *", {
            "abi_version": 1 if self.maybe(80) else self.rng.randrange(2**32),
            "struct_size": 24 if self.maybe(70) else self.rng.choice((0, 8, 23, 2**32 - 1)),
            "callback": callback,
        }))

    def page_desc(self) -> Any:
        """Often what an export just wrote, so that imports get past the first test."""
        return self.output() if self.maybe(70) else self.random_struct(
            "struct skippy_kv_page_desc *"
        )

    def coherent(self, symbol: Symbol) -> dict[str, Any]:
        """Arguments that belong together, for calls that chance alone never gets right."""
        ffi = self.ffi
        if symbol.name == "skippy_apply_chat_template_json":
            absent = ("tools_json", "tool_choice_json", "reasoning_format", "chat_template_kwargs")
            return {"messages_json": self.keep(ffi.new("char[]", TEXTS[9])),
                    **dict.fromkeys(absent, ffi.NULL)}
        if symbol.name == "skippy_parse_chat_response_json":
            return {"metadata_json": self.keep(ffi.new("char[]", self.metadata))}
        if symbol.name in ("skippy_import_state", "skippy_import_full_state"):
            raw = self.keep(ffi.new("char[]", self.state))
            return {"layer_start": 0, "layer_end": 2, "input": raw, "input_bytes": len(self.state)}
        if "export" in symbol.name and "recurrent" not in symbol.name:
            return {"layer_start": 0, "layer_end": 2, "output_capacity": ROOM,
                    **({"token_start": 0, "token_count": 1} if "page" in symbol.name else {})}
        if symbol.name == "skippy_import_kv_page":
            desc, raw = (self.keep(ffi.new("char[]", data)) for data in self.page)
            return {"desc": desc, "input": raw, "input_bytes": len(self.page[1])}
        if symbol.name == "skippy_write_slice_gguf":
            return {"stage_index": 1}
        if symbol.name == "skippy_slice_plan_add_layer_range":
            return {"stage_index": 1, "layer_start": 0}
        if "prefix" in symbol.name:
            return {"cache_seq_id": 8, "token_count": 1}
        return {}

    def learn(self, symbol: Symbol, args: list[Any]) -> None:
        """Keep what an export or a template call wrote, for the calls that take it back."""
        named = {p.name: a for p, a in zip(symbol.params, args, strict=False)}
        counter = named.get("out_bytes") or named.get("out_metadata_json_bytes")
        out = named.get("output") or named.get("output_metadata_json")
        if not counter or not out or out == self.read_only:
            return
        n = self.ffi.cast("size_t *", counter)[0]
        if n <= ROOM and named.get("out_desc"):
            desc = self.ffi.buffer(self.ffi.cast("char *", named["out_desc"]), 224)
            self.page = bytes(desc), bytes(self.ffi.buffer(self.ffi.cast("char *", out), n))
        elif n <= ROOM and symbol.name.endswith("state") and counter != out:
            self.state = bytes(self.ffi.buffer(self.ffi.cast("char *", out), n))
        elif n <= ROOM and symbol.name.endswith("template_json"):
            self.metadata = bytes(self.ffi.buffer(self.ffi.cast("char *", out), n))


MAKERS: dict[str, Callable[[Arguments], Any]] = {
    "path": Arguments.path, "output_path": Arguments.output_path, "config": Arguments.config,
    "reporter": Arguments.reporter, "sessions": Arguments.sessions, "desc": Arguments.page_desc,
    "input": Arguments.output,
    "paths": lambda arguments: arguments.array(arguments.path),
    "input_paths": lambda arguments: arguments.array(arguments.path),
}
