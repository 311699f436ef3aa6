"""Owns a second runtime with the same ABI, generated in C from the table, for fall-through tests.

Every function counts its calls and keeps its arguments as they came. It answers OK, or what
`answer` was set to with an error object of its own; functions without a status return a number made
of their place in the table. Opens and creates give out addresses of its own memory. It knows
nothing of models. A process loads one fallback for its life: all tests of this process share it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skippy_abi import client, generate, table, toolchain
from skippy_abi.table import Abi, Symbol
from tests import tiny

Build = Callable[..., Path]
N_ARGUMENTS = 20
N_HANDLES = 4096

HEAD = """
#include <stdlib.h>
#include <string.h>
static uint64_t calls[%(n)d], arguments[%(n)d][%(args)d], errors, next_handle;
static int answer;
/* 16 bytes apart, like small allocations. */
static char handles[%(handles)d][16] __attribute__((aligned(16)));
static uint64_t n_handles;
static const char message[] = "the other runtime says no";

uint64_t probe_calls(int symbol) { return __atomic_load_n(&calls[symbol], __ATOMIC_SEQ_CST); }
uint64_t probe_argument(int symbol, int place) { return arguments[symbol][place]; }
void probe_answer(int status) { answer = status; }
void probe_next_handle(uint64_t handle) { next_handle = handle; }
uint64_t probe_errors(void) { return __atomic_load_n(&errors, __ATOMIC_SEQ_CST); }
void probe_reset(void) { memset(calls, 0, sizeof calls); answer = 0; next_handle = 0; }

static void *give(void)
{
    if (next_handle) return (void *)(uintptr_t)next_handle;
    return handles[__atomic_fetch_add(&n_handles, 1, __ATOMIC_SEQ_CST) %% %(handles)d];
}

static int told(struct skippy_error **out_error)
{
    if (answer && out_error) {
        struct skippy_error *made = malloc(sizeof *made);
        made->status = answer;
        made->message = message;
        __atomic_fetch_add(&errors, 1, __ATOMIC_SEQ_CST);
        *out_error = made;
    }
    return answer;
}
"""


def _function(number: int, symbol: Symbol, version: Sequence[int]) -> str:
    if symbol.name == "skippy_abi_version":
        body = f"return (struct skippy_abi_version){{{', '.join(map(str, version))}}};"
    elif symbol.name == "skippy_error_free":
        body = "__atomic_fetch_sub(&errors, 1, __ATOMIC_SEQ_CST); free(error);"
    else:
        lines = [f"__atomic_fetch_add(&calls[{number}], 1, __ATOMIC_SEQ_CST);"]
        for place, param in enumerate(symbol.params):
            lines.append(f"arguments[{number}][{place}] = (uint64_t){param.name};")
            if param.c_type.endswith("**") and param.name in ("out_model", "out_session"):
                lines.append(f"if (!answer) *{param.name} = give();")
        told = any(param.name == "out_error" for param in symbol.params)
        if symbol.is_status:
            lines.append("return told(out_error);" if told else "return answer;")
        elif symbol.returns != "void":
            lines.append(f"return ({symbol.returns})(uintptr_t){value_of(number)};")
        body = " ".join(lines)
    return f"{symbol.returns} {symbol.prototype} {{ {body} }}"


def value_of(number: int) -> int:
    """What the function at that place returns when it has no status."""
    return 7000 + number


def build(
    out: Path, *, version: Sequence[int] | None = None, without: Sequence[str] = (),
) -> Path:
    """Compile the runtime into the file `out`, of another ABI version or without some functions."""
    abi = table.load()
    symbols = abi.of("skippy")
    numbers = {"n": len(symbols), "args": N_ARGUMENTS, "handles": N_HANDLES}
    functions = [
        _function(number, symbol, version or abi.version)
        for number, symbol in enumerate(symbols) if symbol.name not in without
    ]
    source = "\n".join([generate.INCLUDES, generate.types(abi), HEAD % numbers, *functions, ""])
    return toolchain.link(out, source, "{ global: skippy_*; probe_*; local: *; };\n",
                          ["-fvisibility=default"])


class Provider:
    """The built library's counters, looked at from the tests."""

    def __init__(self, path: Path, abi: Abi, host: client.Host) -> None:
        self._ffi = host.ffi
        self._library = ctypes.CDLL(str(path))
        for name in ("probe_calls", "probe_argument", "probe_errors"):
            getattr(self._library, name).restype = ctypes.c_uint64
        self._library.probe_next_handle.argtypes = [ctypes.c_uint64]
        self._places = {symbol.name: place for place, symbol in enumerate(abi.of("skippy"))}
        self._params = {s.name: [p.name for p in s.params] for s in abi.of("skippy")}

    def reset(self) -> None:
        """Forget the counts; answer OK again."""
        self._library.probe_reset()

    def calls(self, name: str) -> int:
        """How often a function was called."""
        return int(self._library.probe_calls(self._places[name]))

    def arguments(self, name: str) -> dict[str, int]:
        """The last call's arguments as 64-bit numbers."""
        place = self._places[name]
        return {
            param: int(self._library.probe_argument(place, i))
            for i, param in enumerate(self._params[name])
        }

    def as_kept(self, made: dict[str, Any]) -> dict[str, int]:
        """Arguments that a test passes, as `arguments` shows them."""
        return {
            name: value if isinstance(value, int) else int(self._ffi.cast("uintptr_t", value))
            for name, value in made.items()
        }

    def answer(self, status: int) -> None:
        """The status of all calls from now on."""
        self._library.probe_answer(status)

    def next_handle(self, number: int) -> None:
        """What opens and creates give out from now on; 0 for addresses of its own."""
        self._library.probe_next_handle(number)

    def value_of(self, name: str) -> int:
        """What a function without a status returns."""
        return value_of(self._places[name])

    @property
    def errors(self) -> int:
        """Error objects that are out."""
        return int(self._library.probe_errors())


@pytest.fixture(scope="session")
def build_other() -> Build:
    """`build`, for tests of other versions."""
    return build


@pytest.fixture(scope="session")
def other_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("other") / "libother.so")


@pytest.fixture
def other(
    other_built: Path, runtime: client.Host, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Provider:
    """The other runtime as the fallback, with nothing counted yet."""
    monkeypatch.setenv("MESH_SPECIALIZE_FALLBACK", str(other_built))
    provider = Provider(other_built, table.load(), runtime)
    provider.reset()
    return provider


@pytest.fixture
def foreign_path(tmp_path: Path) -> Path:
    """A readable model that is not served."""
    return tiny.write(tmp_path / "foreign.gguf", seed=77)


@pytest.fixture
def foreign(runtime: client.Host, other: Provider, foreign_path: Path) -> Iterator[Any]:
    """A model and a session of the other runtime."""
    model = client.OpenModel(runtime, foreign_path)
    session = model.session()
    yield session
    other.answer(0)
    runtime.raw("skippy_session_free", session.handle)
    runtime.raw("skippy_model_free", model.handle)
