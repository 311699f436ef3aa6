"""Owns the fuzzer of the C ABI: seeded random calls of every export, right and hostile mixed.

    python -m tests.abi.fuzz ENGINE STUBS MODEL FOLDER SEED N_CALLS

It prints one JSON line: calls, statuses seen, handles left, growth of memory after the warm-up.
A crash is the exit code, and FOLDER/last.txt then names the call.
"""

import faulthandler
import gc
import json
import mmap
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from skippy_abi.client import Host
from skippy_abi.table import Symbol
from tests.abi.fuzz_arguments import Arguments
from tests.abi.seam import ABI, HANDLES

FREES = {"model": "skippy_model_free", "session": "skippy_session_free",
         "cache": "skippy_ngram_cache_free", "info": "skippy_model_info_free",
         "plan": "skippy_slice_plan_free"}
LIMITS = {"model": 3, "session": 8, "cache": 8, "info": 8, "plan": 8}
# Slow when they succeed, or ending what others use: called less often.
RARE = ("skippy_model_open", "skippy_write", "skippy_model_info_open", "_free")


class Fuzzer(Arguments):
    """One run: calls, and what their answers must be."""

    def __init__(self, host: Host, model: Path, folder: Path, seed: int) -> None:
        super().__init__(host, model, folder, seed)
        self.owner: dict[Any, Any] = {}
        self.statuses: Counter[int] = Counter()
        self.n_ok: Counter[str] = Counter()
        served = [s for s in ABI.of("skippy") if s.returns != "struct skippy_abi_version"]
        self.symbols = [
            s for s in served for _ in range(1 if any(r in s.name for r in RARE) else 12)
        ]
        trace = folder / "last.txt"
        trace.write_bytes(bytes(4096))
        with trace.open("r+b") as file:
            self.trace = mmap.mmap(file.fileno(), 4096)

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
