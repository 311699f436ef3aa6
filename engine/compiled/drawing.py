"""Owns drawing tokens from rows of logits that lie on the device: a few launches for all rows of a
pass, captured with their copies.

Rows are copied to one place first, so that one graph serves all. The chain's penalties, biases and
masks make adjusted logits, from which a token is drawn for each row (`adjust_logits`,
`sample_wide`; counts of the penalty windows come and go by `count_tokens`). `start` puts it behind
whatever is on the stream, a pass for one; `finish` tells what was drawn once somebody has waited.
It must not know sessions, configs or random states: a request says it all. Past 250 lines because
what a request brings is written in one place.
"""

from collections.abc import Sequence
from math import prod
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
# What crosses with requests, and what other buffers hold at first.
CROSSING = (*NUMBERS, "mask", "bias_ids", "bias", "ids", "weights")
FIRST = {"counts": 0, "work": 0, "everything": 2**32 - 1, "bias_ids": -1, "bias": 0.0}
CORRUPT, BANNED = -1, -2
WINDOW = ("ids", "lanes", "enter", "leave")
# Tokens of all penalty windows of a draw are padded to the next of these lengths, each LONGER times
# the one before, so that few lengths are ever captured.
SHORTEST, LONGER = 256, 4
NOBODY = -1


def buffers_of(n_vocab: int, n_rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of everything that drawing from up to `n_rows` rows keeps on the device."""
    n_words = -(-n_vocab // 32)
    return {
        **{name: (name, (len(names), n_rows)) for name, names in NUMBERS.items()},
        "z": ("f64", (n_rows, n_vocab)),
        "counts": ("i32", (n_rows, n_vocab)),
        "mask": ("u32", (n_rows, n_words)),
        "everything": ("u32", (n_rows, n_words)),
        "bias_ids": ("i32", (n_rows, MAX_LOGIT_BIAS)),
        "bias": ("f64", (n_rows, MAX_LOGIT_BIAS)),
        "ids": ("i32", (n_rows,)),
        "weights": ("i64", (n_rows, 2)),
        "n_left": ("i32", (n_rows,)),
        "rows": ("f32", (n_rows, n_vocab)),
        "work": ("i64", (n_rows, WORK_WORDS)),
    }


class Drawing:
    """Draws from rows of `n_vocab` logits, up to `n_rows` at a time."""

    def __init__(self, device: Device, staging: Staging, n_vocab: int, n_rows: int) -> None:
        """Allocate what it keeps; no token counted, no bias, everything allowed."""
        self._device, self._staging = device, staging
        self.n_vocab = n_vocab
        self._on: dict[str, Any] = {}
        self._host: dict[str, Array] = {}
        for name, (dtype, shape) in buffers_of(n_vocab, n_rows).items():
            self._on[name] = device.allocate(shape, dtype, f"drawing: {name}")
            if name in CROSSING:
                self._host[name] = staging.array(shape, dtype, f"drawing: {name}")
            if name in FIRST:
                device.upload(self._on[name], np.full(shape, FIRST[name], DTYPES[dtype]))
        self._graphs = Graphs(device)
        self._n_window = 0
        self._biased: set[int] = set()
        self._has_counts = False
        # When the arrays that cross were last put on the stream, in waits of the staging.
        self._sent_at = NOBODY

    def draw_moved(self, row: Array, request: DrawRequest) -> Draw:
        """As `draw`, from a row in main memory: float32 [n_vocab]."""
        try:
            self._device.upload(self._on["rows"][0], row)
        except PtxError as error:
            raise RuntimeFailure(f"device: {error}") from None
        return self._now([], request)

    def draw(self, logits: Any, request: DrawRequest) -> Draw:
        """A token of a row: logits f32 [V'], V' >= n_vocab, of which the first n_vocab count.

        RuntimeFailure for a row with a NaN or infinity, and when every token is banned.
        """
        return self._now([logits], request)

    def _now(self, rows: Sequence[Any], request: DrawRequest) -> Draw:
        try:
            self.start(rows, [request])
            self._staging.wait()
        except PtxError as error:
            raise RuntimeFailure(f"device: {error}") from None
        (found,) = self.finish(1)
        if isinstance(found, RuntimeFailure):
            raise found
        return found

    def start(self, rows: Sequence[Any], requests: Sequence[DrawRequest]) -> None:
        """Put the draws of rows of logits, as `draw` takes them, on the stream. No rows: those of
        the last call. DeviceError of a lost device."""
        if self._staging.n_waits == self._sent_at:
            self._staging.wait()
        self._forget_windows()
        self._sent_at = self._staging.n_waits
        self._staging.begin()
        for index, logits in enumerate(rows):
            self._device.copy(logits[: self.n_vocab], self._on["rows"][index])
        is_masked = any(request.mask is not None for request in requests)
        for index, request in enumerate(requests):
            self._write(index, request)
            if is_masked:
                self._write_mask(index, request)
        n_window = self._write_windows(requests)
        shape = (len(requests), int(is_masked), n_window)
        self._has_counts = bool(n_window)
        self._graphs.run(shape, lambda _: self._launch(*shape))
        self._has_counts = False

    def finish(self, n_rows: int) -> list[Draw | RuntimeFailure]:
        """What the last `start` drew, once it was waited for; of a row without a choice, why."""
        ids, weights = self._host["ids"].tolist(), self._host["weights"].tolist()
        return [self._told(*found) for found in zip(ids[:n_rows], weights[:n_rows], strict=True)]

    def _told(self, token: int, weights: list[int]) -> Draw | RuntimeFailure:
        if token == CORRUPT:
            return RuntimeFailure(f"logits: one of {self.n_vocab} is not finite")
        if token == BANNED:
            return RuntimeFailure(f"sampler: mask and bias ban every one of {self.n_vocab} tokens")
        return Draw(token, *weights)

    def _write(self, index: int, request: DrawRequest) -> None:
        """Take what a request says, and bring its biases where they are others than before."""
        numbers: dict[str, tuple[float | int, ...]] = {
            "f64": (
                request.repeat, request.frequency, request.presence, request.temperature,
                request.top_p, request.log_min_p,
            ),
            "i64": (_signed(request.seed), request.index),
            "i32": (min(request.top_k, self.n_vocab),),
        }
        for name, values in numbers.items():
            self._host[name][:, index] = values
        if request.bias or index in self._biased:
            self._bring_bias(index, request.bias)

    def _write_mask(self, index: int, request: DrawRequest) -> None:
        """Take what a row allows, which is everything where its request says nothing."""
        words = self._host["mask"].view(np.uint8)[index]
        words.fill(255)
        if request.mask is not None:
            bits = np.packbits(request.mask, bitorder="little")
            words[: len(bits)] = bits

    def _bring_bias(self, index: int, bias: tuple[tuple[int, float], ...]) -> None:
        self._host["bias_ids"][index] = -1
        for at, (token, value) in enumerate(bias):
            self._host["bias_ids"][index, at] = token
            self._host["bias"][index, at] = value
        for name in ("bias_ids", "bias"):
            self._staging.send(self._on[name][index], self._host[name][index])
        (self._biased.add if bias else self._biased.discard)(index)

    def _launch(self, n_rows: int, is_masked: int, n_window: int) -> None:
        """Bring the numbers, choose from the rows that were brought, take the answers."""
        on, part = self._on, slice(0, n_rows)
        for name in NUMBERS:
            self._staging.send(on[name], self._host[name])
        if is_masked:
            self._staging.send(on["mask"][part], self._host["mask"][part])
        for name in WINDOW if n_window else ():
            cells = self._host[f"window {name}"][:n_window]
            self._staging.send(self._window(name, n_window), cells)
        numbers = {
            name: on[dtype][at][part]
            for dtype, names in NUMBERS.items() for at, name in enumerate(names)
        }  # fmt: skip
        self._count(n_window, "enter")
        self._device.launch(
            ADJUST_LOGITS, logits=on["rows"][part], counts=on["counts"][part],
            mask=on["mask" if is_masked else "everything"][part],
            bias_ids=on["bias_ids"][part], bias=on["bias"][part], z=on["z"][part],
            **{name: numbers[name] for name in ("repeat", "frequency", "presence")},
        )  # fmt: skip
        self._count(n_window, "leave")
        self._device.launch(
            SAMPLE_WIDE, z=on["z"][part],
            **{name: on[name][part] for name in ("ids", "weights", "n_left", "work")},
            **{
                name: numbers[name]
                for name in ("temperature", "top_p", "log_min_p", "top_k", "seed", "draw")
            },
        )
        for name in ("ids", "weights"):
            self._staging.fetch(on[name][part], self._host[name][part])

    def _count(self, n_window: int, delta: str) -> None:
        """Let the windows' tokens enter the counts, or leave them."""
        if n_window:
            self._device.launch(
                COUNT_TOKENS, counts=self._on["counts"],
                **{name: self._window(name, n_window) for name in ("ids", "lanes")},
                delta=self._window(delta, n_window),
            )  # fmt: skip

    def _window(self, name: str, n_window: int) -> Any:
        return self._on[f"window {name}"][:n_window]

    def _forget_windows(self) -> None:
        """After a draw that failed between the two counts are not zero."""
        if self._has_counts:
            counts = self._on["counts"]
            self._device.upload(counts, np.zeros(counts.shape, np.int32))
            self._has_counts = False

    def _write_windows(self, requests: Sequence[DrawRequest]) -> int:
        """Take the tokens of all penalty windows; their number with padding, 0 for none."""
        n_tokens = sum(len(request.tokens) for request in requests)
        if not n_tokens:
            return 0
        padded = SHORTEST
        while padded < n_tokens:
            padded *= LONGER
        if padded > self._n_window:
            self._allocate_windows(padded)
        at = 0
        for lane, request in enumerate(requests):
            part = slice(at, at + len(request.tokens))
            columns = (request.tokens, lane, request.counts, -request.counts)
            for name, cells in zip(WINDOW, columns, strict=True):
                self._host[f"window {name}"][part] = cells
            at = part.stop
        self._host["window lanes"][at:padded] = NOBODY
        return padded

    def _allocate_windows(self, n_window: int) -> None:
        """Longer windows. What was captured goes, for it has the buffers of the shorter ones."""
        self._graphs = Graphs(self._device)
        for name in WINDOW:
            shown = f"drawing: {name} of the windows"
            self._on[f"window {name}"] = self._device.allocate((n_window,), "i32", shown)
            self._host[f"window {name}"] = self._staging.array((n_window,), "i32", shown)
        self._n_window = n_window


def n_bytes_of(n_vocab: int, n_rows: int) -> int:
    """Bytes that drawing keeps, but for windows."""
    return sum(
        prod(shape) * DTYPES[dtype].itemsize
        for dtype, shape in buffers_of(n_vocab, n_rows).values()
    )


def _signed(seed: int) -> int:
    """The 64 bits of a seed as the op takes them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
