"""Owns what torch needs for the same work on the same card, where torch is there.

torch is imported by name, when asked for: it is no part of the product, and what it lacks is a
note, never an error. It runs on its own stream, captured and timed as our launches are.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.bench_ops.case import Case
from engine.bench_ops.measure import n_sets_for
from engine.bench_ops.timing import Effort, Launch, Spread, time_launches
from ptx.op import Dims

# torch's OutOfMemoryError and its driver errors are RuntimeErrors.
ERRORS = (RuntimeError, AttributeError, TypeError, ValueError, ImportError, OSError)
GROUP = 128
PRODUCT = 8192
# Makes one set of operands and the call on them.
Maker = Callable[[], Launch]


@dataclass(frozen=True)
class Peer:
    """What somebody else's kernel took."""

    name: str
    us: Spread


@dataclass
class Peers:
    """Measures with a `torch` that has a card; `notes` says what did not work."""

    torch: Any
    l2_bytes: int
    effort: Effort
    notes: list[str] = field(default_factory=list)
    known: dict[Any, Peer | None] = field(default_factory=dict)

    def measure(self, case: Case) -> Peer | None:
        """The fastest way that torch has for a case; None if it has none."""
        return self._best(case.peer, case.dims, case.n_bytes) if case.peer else None

    def product_flops(self) -> float | None:
        """Operations in a second of a bf16 product of 8192^3; None when it did not run."""
        dims = dict.fromkeys("TNK", PRODUCT)
        peer = self._best("matmul", dims, 6 * PRODUCT * PRODUCT)
        return 2 * PRODUCT**3 / peer.us.median * 1e6 if peer else None

    def _best(self, name: str, dims: Dims, n_bytes: int) -> Peer | None:
        key = (name, *sorted(dims.items()))
        if key not in self.known:
            found = [self._timed(*way, n_bytes) for way in WAYS[name](self.torch, dims)]
            there = [peer for peer in found if peer]
            self.known[key] = min(there, key=lambda peer: peer.us.median, default=None)
        return self.known[key]

    def _timed(self, name: str, make: Maker, n_bytes: int) -> Peer | None:
        try:
            with self.torch.inference_mode():
                calls = [make() for _ in range(n_sets_for(n_bytes, self.l2_bytes))]
                us = time_launches(_Card(self.torch), calls, self.effort)
            del calls
            self.torch.cuda.empty_cache()
        except ERRORS as error:
            said = str(error).strip().partition("\n")[0]
            note = f"{name}: {type(error).__name__}: {said}"
            if note not in self.notes:
                self.notes.append(note)
            return None
        return Peer(name, us)


def find_torch() -> Any:
    """The module, if it has a card; else the reason, a string."""
    try:
        torch = importlib.import_module("torch")
        return torch if torch.cuda.is_available() else "torch sees no card"
    except ERRORS as error:
        return f"no torch: {error}"


class _Card:
    """torch's stream, as `timing` takes devices."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    @contextmanager
    def capture(self, name: str) -> Iterator[Any]:
        """A graph of what the body puts on torch's stream."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            yield graph

    def event(self) -> "_Event":
        """A new event of the current stream."""
        return _Event(self.torch.cuda.Event(enable_timing=True))


@dataclass
class _Event:
    event: Any

    def record(self) -> None:
        self.event.record()

    def synchronize(self) -> None:
        self.event.synchronize()

    def milliseconds_since(self, earlier: "_Event") -> float:
        return float(earlier.event.elapsed_time(self.event))


# Ways to do the work of some dims, by name; the fastest counts.
Ways = Iterator[tuple[str, Maker]]


def _random(torch: Any, *shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _matmul(torch: Any, dims: Dims) -> Ways:
    def make() -> Launch:
        x, w = _random(torch, dims["T"], dims["K"]), _random(torch, dims["N"], dims["K"])
        return lambda: torch.mm(x, w.t())

    yield "torch.mm bf16", make


def _fp8(torch: Any, dims: Dims) -> Ways:
    def make() -> Launch:
        x = _random(torch, dims["T"], dims["K"]).to(torch.float8_e4m3fn)
        w = _random(torch, dims["N"], dims["K"]).to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )

    yield "torch._scaled_mm e4m3", make


def _int4(torch: Any, dims: Dims) -> Ways:
    def make() -> Launch:
        n_rows, n_k = dims["N"], dims["K"]
        x = _random(torch, dims["T"], n_k)
        codes = torch.randint(0, 256, (n_rows, n_k // 2), device="cuda", dtype=torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
        scales = _random(torch, n_k // GROUP, n_rows, 2).abs()
        return lambda: torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales)

    yield "aten._weight_int4pack_mm", make


def _attention(torch: Any, dims: Dims) -> Ways:
    """One row against all cells, where query heads may also stand as rows; or causal rows."""
    n_rows, heads, kv_heads, width = (dims[axis] for axis in "THGE")
    n_cells = dims["W"] * dims["B"]
    attend = torch.nn.functional.scaled_dot_product_attention

    def make(rows: tuple[int, int], expand: bool, **how: Any) -> Launch:
        q = _random(torch, 1, *rows, width)
        k, v = (_random(torch, 1, kv_heads, n_cells, width) for _ in range(2))
        if expand:
            k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        if n_cells > n_rows > 1:
            bias = importlib.import_module("torch.nn.attention.bias")
            how |= {"attn_mask": bias.causal_lower_right(n_rows, n_cells)}
        elif n_rows > 1:
            how |= {"is_causal": True}
        return lambda: attend(q, k, v, **how)

    yield "sdpa, enable_gqa", lambda: make((heads, n_rows), False, enable_gqa=True)
    if n_rows == 1:
        yield "sdpa, heads as rows", lambda: make((kv_heads, heads // kv_heads), False)
    else:
        yield "sdpa, expanded heads", lambda: make((heads, n_rows), True)


WAYS: dict[str, Callable[[Any, Dims], Ways]] = {
    "matmul": _matmul, "fp8": _fp8, "int4": _int4, "attention": _attention,
}
