"""Owns drawing a token from a row of logits that lies on the device: two launches, a few bytes,
captured with their copies.

The row is copied to one place first, so that one graph serves all. The chain's penalties, biases
and mask make adjusted logits, from which one token is drawn (`adjust_logits`, `sample_wide`; counts
of the penalty window come and go by `count_tokens`). It must not know sessions, configs or random
states: a request says it all.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.compiled.graphs import Graphs
from engine.compiled.staging import Staging
from engine.errors import RuntimeFailure
from engine.sampling import MAX_LOGIT_BIAS, Draw, DrawRequest
from ptx.adjust_logits.op import OP as ADJUST_LOGITS
from ptx.count_tokens.op import OP as COUNT_TOKENS
from ptx.device import Device
from ptx.numerics import DTYPES, Array
from ptx.op import PtxError
from ptx.sample_wide.op import OP as SAMPLE_WIDE
from ptx.sample_wide.op import WORK_WORDS

# The numbers of a request, as the ops name them, by dtype.
NUMBERS = {
    "f64": ("repeat", "frequency", "presence", "temperature", "top_p", "log_min_p"),
    "i64": ("seed", "draw"),
    "i32": ("top_k",),
}
# What crosses with a request, and what other buffers hold at first.
CROSSING = (*NUMBERS, "mask", "bias_ids", "bias", "ids", "weights")
FIRST = {"counts": 0, "work": 0, "everything": 2**32 - 1, "bias_ids": -1, "bias": 0.0}
CORRUPT, BANNED = -1, -2
WINDOW = ("ids", "lanes", "enter", "leave")


def buffers_of(n_vocab: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of everything that drawing keeps on the device."""
    return {
        **{name: (name, (len(names),)) for name, names in NUMBERS.items()},
        "z": ("f64", (1, n_vocab)),
        "counts": ("i32", (1, n_vocab)),
        "mask": ("u32", (1, -(-n_vocab // 32))),
        "everything": ("u32", (1, -(-n_vocab // 32))),
        "bias_ids": ("i32", (1, MAX_LOGIT_BIAS)),
        "bias": ("f64", (1, MAX_LOGIT_BIAS)),
        "ids": ("i32", (1,)),
        "weights": ("i64", (1, 2)),
        "n_left": ("i32", (1,)),
        "row": ("f32", (n_vocab,)),
        "work": ("i64", (1, WORK_WORDS)),
    }


class Drawing:
    """Draws from rows of `n_vocab` logits, one at a time."""

    def __init__(self, device: Device, staging: Staging, n_vocab: int) -> None:
        """Allocate what it keeps; no token counted, no bias, everything allowed."""
        self._device, self._staging = device, staging
        self.n_vocab = n_vocab
        self._on: dict[str, Any] = {}
        self._host: dict[str, Array] = {}
        for name, (dtype, shape) in buffers_of(n_vocab).items():
            self._on[name] = device.allocate(shape, dtype, f"drawing: {name}")
            if name in CROSSING:
                self._host[name] = staging.array(shape, dtype, f"drawing: {name}")
            if name in FIRST:
                device.upload(self._on[name], np.full(shape, FIRST[name], DTYPES[dtype]))
        self._graphs = Graphs(device)
        self._n_window = 0
        self._is_biased = self._has_counts = False

    def draw_moved(self, row: Array, request: DrawRequest) -> Draw:
        """As `draw`, from a row in main memory: float32 [n_vocab]."""
        return self._draw(lambda: self._device.upload(self._on["row"], row), request)

    def draw(self, logits: Any, request: DrawRequest) -> Draw:
        """A token of a row: logits f32 [V'], V' >= n_vocab, of which the first n_vocab count.

        RuntimeFailure for a row with a NaN or infinity, and when every token is banned.
        """
        row = logits[: self.n_vocab]
        return self._draw(lambda: self._device.copy(row, self._on["row"]), request)

    def _draw(self, bring_row: Callable[[], None], request: DrawRequest) -> Draw:
        try:
            self._staging.settle()
            self._forget_window()
            self._staging.begin()
            self._write(request)
            window = self._bring_window(request)
            bring_row()
            is_masked = request.mask is not None
            # A window has a length of its own each time.
            if window:
                self._launch(is_masked, window)
            else:
                self._graphs.run((int(is_masked),), lambda _: self._launch(is_masked, {}))
            self._staging.wait()
        except PtxError as error:
            raise RuntimeFailure(f"device: {error}") from None
        token = int(self._host["ids"][0])
        if token == CORRUPT:
            raise RuntimeFailure(f"logits: one of {self.n_vocab} is not finite")
        if token == BANNED:
            raise RuntimeFailure(
                f"sampler: mask and bias ban every one of {self.n_vocab} tokens"
            )
        weight, total = self._host["weights"][0].tolist()
        return Draw(token, weight, total)

    def _write(self, request: DrawRequest) -> None:
        """Take what the request says, and bring its biases where they are others than before."""
        values: dict[str, tuple[float | int, ...]] = {
            "f64": (
                request.repeat, request.frequency, request.presence, request.temperature,
                request.top_p, request.log_min_p,
            ),
            "i64": (_signed(request.seed), request.index),
            "i32": (min(request.top_k, self.n_vocab),),
        }
        for name, numbers in values.items():
            self._host[name][...] = numbers
        if request.bias or self._is_biased:
            self._bring_bias(request.bias)
        if request.mask is not None:
            bits = np.packbits(request.mask, bitorder="little")
            self._host["mask"].view(np.uint8)[0, : len(bits)] = bits

    def _bring_bias(self, bias: tuple[tuple[int, float], ...]) -> None:
        self._host["bias_ids"].fill(-1)
        for at, (token, value) in enumerate(bias):
            self._host["bias_ids"][0, at] = token
            self._host["bias"][0, at] = value
        for name in ("bias_ids", "bias"):
            self._staging.send(self._on[name], self._host[name])
        self._is_biased = bool(bias)

    def _launch(self, is_masked: bool, window: dict[str, Any]) -> None:
        """Bring the numbers, choose from the row that was brought, take the answer."""
        on = self._on
        for name in (*NUMBERS, *(("mask",) if is_masked else ())):
            self._staging.send(on[name], self._host[name])
        numbers = {
            name: on[dtype][at : at + 1]
            for dtype, names in NUMBERS.items() for at, name in enumerate(names)
        }  # fmt: skip
        self._count(window, "enter")
        self._device.launch(
            ADJUST_LOGITS, logits=on["row"].reshape((1, self.n_vocab)), counts=on["counts"],
            mask=on["mask" if is_masked else "everything"], bias_ids=on["bias_ids"],
            bias=on["bias"], z=on["z"],
            **{name: numbers[name] for name in ("repeat", "frequency", "presence")},
        )  # fmt: skip
        self._count(window, "leave")
        self._device.launch(
            SAMPLE_WIDE, z=on["z"],
            **{name: on[name] for name in ("ids", "weights", "n_left", "work")},
            **{
                name: numbers[name]
                for name in ("temperature", "top_p", "log_min_p", "top_k", "seed", "draw")
            },
        )
        for name in ("ids", "weights"):
            self._staging.fetch(on[name], self._host[name])

    def _count(self, window: dict[str, Any], delta: str) -> None:
        """Let the window's tokens enter the counts, or leave them."""
        if window:
            self._has_counts = delta == "enter"
            self._device.launch(
                COUNT_TOKENS, counts=self._on["counts"], ids=window["ids"],
                lanes=window["lanes"], delta=window[delta],
            )  # fmt: skip

    def _forget_window(self) -> None:
        """After a draw that failed between the two counts are not zero."""
        if self._has_counts:
            zeros = np.zeros((1, self.n_vocab), np.int32)
            self._device.upload(self._on["counts"], zeros)
            self._has_counts = False

    def _bring_window(self, request: DrawRequest) -> dict[str, Any]:
        """Send the tokens of the penalty window; no buffers where there are none."""
        n = len(request.tokens)
        if n > self._n_window:
            # As much again, so that a growing history is not a new buffer for each token.
            self._n_window = 2 * n
            for name in WINDOW:
                shown = f"drawing: {name} of the window"
                self._on[f"window {name}"] = self._device.allocate((2 * n,), "i32", shown)
                self._host[f"window {name}"] = self._staging.array((2 * n,), "i32", shown)
        columns = (request.tokens, 0, request.counts, -request.counts)
        given = {}
        for name, cells in zip(WINDOW, columns, strict=True) if n else ():
            part = self._host[f"window {name}"][:n]
            part[...] = cells
            given[name] = self._on[f"window {name}"][:n]
            self._staging.send(given[name], part)
        return given


def _signed(seed: int) -> int:
    """The 64 bits of a seed as the op takes them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
