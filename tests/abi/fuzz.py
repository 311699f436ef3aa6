"""Owns the fuzzer of the C ABI: seeded random calls of every export, right and hostile mixed.

    python -m tests.abi.fuzz ENGINE STUBS MODEL FOLDER SEED N_CALLS

It prints one JSON line: calls, statuses seen, handles left, growth of memory after the warm-up.
A crash is the exit code, and FOLDER/last.txt then names the call. What a host must not do, it does
not do either: callbacks are NULL or functions, and capacities never exceed the memory behind an
output that is really written. Everything else may be wrong.
"""

import faulthandler
import gc
import json
import mmap
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skippy_abi.client import Host
from skippy_abi.table import Symbol
from tests.abi.seam import ABI, HANDLES, UNMAPPED, is_handle, is_output, is_pointer

ROOM = 1 << 18
SMALL_INTS = (1, 2, 3, 7, 8, 16, 255, 4095, 4096)
BIG = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FREES = {"model": "skippy_model_free", "session": "skippy_session_free",
         "cache": "skippy_ngram_cache_free", "info": "skippy_model_info_free",
         "plan": "skippy_slice_plan_free"}
LIMITS = {"model": 3, "session": 8, "cache": 8, "info": 8, "plan": 8}
# Slow when they succeed, or ending what others use: called less often.
RARE = ("skippy_model_open", "skippy_write", "skippy_model_info_open", "_free")
TEXTS = (
    b"", b"the then", b"hello", b"\xff\xfe", b"\xed\xa0\xbd", b"null", b"{}", b"[]", b'"none"',
    b'[{"role":"user","content":"hi"}]', b'[{"role":"assistant","content":null}]',
    b'{"grammar":"root ::= \\"a\\""}', b'{"grammar":"","sampler":{"seed":"7"}}', b"auto", b"[" * 999,
    b'[{"type":"function","function":{"name":"f"}}]', "é漢🦙".encode(), b"%s%n", b"a" * 3000,
)


class Fuzzer:
    """One run: live handles by kind, and arguments made at random for any export."""

    def __init__(self, host: Host, model: Path, folder: Path, seed: int) -> None:
        self.host, self.ffi, self.rng = host, host.ffi, random.Random(seed)
        self.model, self.folder = model, folder
        self.live: dict[str, list[Any]] = {kind: [] for kind in HANDLES.values()}
        self.dead: list[Any] = []
        self.owner: dict[Any, Any] = {}
        self.statuses: Counter[int] = Counter()
        self.n_ok: Counter[str] = Counter()
        self.kept: list[Any] = []
        self.outputs = [self.ffi.new("char[]", ROOM) for _ in range(6)]
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
        self.read_only = self.ffi.cast("char *", self.ffi.from_buffer(page))
        self.callback = self.ffi.callback(
            "void(const struct skippy_runtime_event_v1 *, void *)", lambda event, data: None
        )
        self.metadata, self.state, self.page = b"{}", b"", (bytes(224), b"")
        served = [s for s in ABI.of("skippy") if s.returns != "struct skippy_abi_version"]
        self.symbols = [
            s for s in served for _ in range(1 if any(r in s.name for r in RARE) else 12)
        ]
        trace = folder / "last.txt"
        trace.write_bytes(bytes(4096))
        with trace.open("r+b") as file:
            self.trace = mmap.mmap(file.fileno(), 4096)

    def maybe(self, percent: float) -> bool:
        return self.rng.random() * 100 < percent

    def wild(self) -> int:
        """An address that nobody may use, and that nothing lives at."""
        return self.rng.choice((*UNMAPPED, *SMALL_INTS, 0x5E50_0000_0000_0000, 2**64 - 1, 2**63))

    # Arguments

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

    # Calls

    def run(self, n_calls: int) -> None:
        for index in range(n_calls):
            self.kept.clear()
            self.step(self.rng.choice(self.symbols), index)
            if not self.live["model"] or not self.live["session"]:
                self.restock()

    def restock(self) -> None:
        """One good model and session, so that most calls get far."""
        ffi = self.ffi
        if not self.live["model"]:
            out = ffi.new("struct skippy_model **")
            config = ffi.new("struct skippy_runtime_config *", {
                "ctx_size": 200, "lane_count": 4, "include_output": True})
            self.host.call("skippy_model_open", ffi.new("char[]", bytes(self.model)), config, out)
            self.live["model"].append(out[0])
        out = ffi.new("struct skippy_session **")
        for model in self.live["model"]:
            if self.host.raw("skippy_session_create", model, out)[0] == 0:
                self.live["session"].append(out[0])
                self.owner[out[0]] = model

    def step(self, symbol: Symbol, index: int) -> None:
        named = {p.name: self.argument(symbol, p.name, p.c_type) for p in symbol.params
                 if p.name != "out_error"}
        if self.maybe(40):
            named |= self.coherent(symbol)
        args = [self.fitted(a, p.c_type)
                for a, p in zip(named.values(), symbol.params, strict=False)]
        line = f"{index} {symbol.name} {args}".encode()[:4000]
        self.trace[: len(line) + 1] = line + b"\n"
        function = self.host.symbol(symbol.name)
        if not symbol.is_status:
            function(*args)
            self.forget_freed(symbol, args)
            return
        error = self.ffi.new("struct skippy_error **")
        place = error
        if self.maybe(8):
            place = self.ffi.cast("struct skippy_error **",
                                  0 if self.maybe(40) else self.wild())
        status = int(function(*args, place))
        assert 0 <= status <= 7, (symbol.name, status)
        self.statuses[status] += 1
        self.check_error(symbol, status, error[0], place is error)
        if status == 0:
            self.n_ok[symbol.name] += 1
            self.learn(symbol, args)
            self.enter_made(symbol, args)
            self.forget_freed(symbol, args)

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

    def fitted(self, value: Any, c_type: str) -> Any:
        return self.ffi.cast(c_type, value) if c_type.endswith("*") else value

    def check_error(self, symbol: Symbol, status: int, error: Any, has_place: bool) -> None:
        if status == 0 or not has_place or symbol.leaves_out_error:
            assert error == self.ffi.NULL, symbol.name
            return
        assert error.status == status, symbol.name
        self.ffi.string(error.message).decode("utf-8")
        assert status != 1, self.ffi.string(error.message)
        self.host.symbol("skippy_error_free")(error)

    def enter_made(self, symbol: Symbol, args: list[Any]) -> None:
        for value, p in zip(args, symbol.params, strict=False):
            kind = HANDLES.get(p.c_type.removesuffix("*") if p.c_type.endswith("**") else "")
            if kind is None or not p.name.startswith("out_"):
                continue
            made = value[0]
            self.live[kind].append(made)
            if kind == "session":
                self.owner[made] = args[0]
            if len(self.live[kind]) > LIMITS[kind]:
                self.free(kind, self.rng.choice(self.live[kind]))

    def forget_freed(self, symbol: Symbol, args: list[Any]) -> None:
        for kind, name in FREES.items():
            if symbol.name == name and args[0] in self.live[kind]:
                self.forget(kind, args[0])

    def forget(self, kind: str, handle: Any) -> None:
        self.live[kind].remove(handle)
        self.dead = [*self.dead[-50:], handle]
        if kind == "model":
            for session in [s for s in self.live["session"] if self.owner.get(s) == handle]:
                self.forget("session", session)
        self.owner.pop(handle, None)

    def free(self, kind: str, handle: Any) -> None:
        extra = [] if kind == "cache" else [self.ffi.NULL]
        status = self.host.symbol(FREES[kind])(handle, *extra)
        assert status in (0, None), (kind, status)
        self.forget(kind, handle)

    def free_all(self) -> None:
        for kind in ("session", "plan", "info", "cache", "model"):
            for handle in list(self.live[kind]):
                self.free(kind, handle)


MAKERS: dict[str, Callable[[Fuzzer], Any]] = {
    "path": Fuzzer.path, "output_path": Fuzzer.output_path, "config": Fuzzer.config,
    "reporter": Fuzzer.reporter, "sessions": Fuzzer.sessions, "desc": Fuzzer.page_desc,
    "input": Fuzzer.output,
    "paths": lambda fuzzer: fuzzer.array(fuzzer.path),
    "input_paths": lambda fuzzer: fuzzer.array(fuzzer.path),
}


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def main(engine: str, stubs: str, model: str, folder: str, seed: str, n_calls: str) -> None:
    faulthandler.enable()
    out = Path(folder)
    (out / "out").mkdir(exist_ok=True)
    os.chdir(out)
    (out / "garbage.gguf").write_bytes(b"GGUF" + random.Random(1).randbytes(3000))
    fuzzer = Fuzzer(Host([Path(stubs), Path(engine)]), Path(model), out, int(seed))
    fuzzer.restock()
    from skippy_abi import handles

    n_warm = int(n_calls) // 3
    fuzzer.run(n_warm)
    fuzzer.free_all()
    gc.collect()
    before = resident_bytes()
    fuzzer.restock()
    fuzzer.run(int(n_calls) - n_warm)
    fuzzer.free_all()
    gc.collect()
    print(json.dumps({
        "calls": int(n_calls), "statuses": dict(sorted(fuzzer.statuses.items())),
        "ok": sum(fuzzer.n_ok.values()), "never_ok": sorted(
            s.name for s in ABI.served if s.is_status and not fuzzer.n_ok[s.name]),
        "handles": handles.live(), "grown_bytes": resident_bytes() - before,
    }))


if __name__ == "__main__":
    main(*sys.argv[1:])
