"""Owns the rows of logits that lie on a device, and what is asked of them without moving them.

Greedy tokens and signals come with a pass, a few bytes a row. The logits themselves come when
somebody asks: a sampler that looks at all of them, a grammar. They lie in one of two buffers by
turns, so that the rows of one pass outlive the next; who holds rows longer gets them moved to main
memory before their buffer is used again. It must not know schedules.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.compiled.drawing import Drawing
from engine.errors import RuntimeFailure
from engine.sampling import Draw, DrawRequest, TokenSignal
from ptx.device import Device
from ptx.op import PtxError

N_BUFFERS = 2
F32 = npt.NDArray[np.float32]
# What `token_signal_wide` gives, by rows: the two best ids; entropy, the two log-probabilities, the
# lead.
Answers = tuple[list[list[int]], list[list[float]]]


class Batch:
    """Rows of one head: best ids and signals in main memory, logits in a device buffer.

    The device may still be at them: the first question waits.
    """

    def __init__(
        self, device: Device, logits: Any, arrive: Callable[[], Answers], drawing: Drawing
    ) -> None:
        """Of the buffer's rows; `arrive` waits for the pass."""
        self._device, self._drawing = device, drawing
        self._logits = logits
        self._moved: F32 | None = None
        self._arrive: Callable[[], Answers] | None = arrive
        self._answers: Answers = ([], [])
        self._expected: dict[int, DrawRequest] = {}
        self._drawn: dict[int, Draw | RuntimeFailure] = {}
        self.n_vocab = drawing.n_vocab

    def answers(self) -> Answers:
        """Of each row its two best ids and its signal; RuntimeFailure of a lost device."""
        if self._arrive is not None:
            expected, self._expected = self._expected, {}
            try:
                if expected:
                    rows = [self._logits[index] for index in expected]
                    self._drawing.start(rows, list(expected.values()))
                self._answers = self._arrive()
            except PtxError as error:
                raise RuntimeFailure(f"device: {error}") from None
            self._arrive = None
            if expected:
                self._drawn = dict(zip(expected, self._drawing.finish(len(expected)), strict=True))
        return self._answers

    def expect(self, index: int, request: DrawRequest) -> None:
        """Say what row `index` will be asked to draw: that is drawn with the first question."""
        if self._arrive is not None:
            self._expected[index] = request

    def draw(self, index: int, request: Callable[[], DrawRequest]) -> Draw:
        """A token of row `index`, wherever it lies now: the same one.

        The first draw of a row is the expected one where there is one.
        """
        self.answers()
        found = self._drawn.pop(index, None)
        if isinstance(found, RuntimeFailure):
            raise found
        if found is not None:
            return found
        if self._moved is None:
            return self._drawing.draw(self._logits[index], request())
        return self._drawing.draw_moved(self._moved[index], request())

    def move(self) -> F32:
        """The logits in main memory, float32 [T, n_vocab]; RuntimeFailure of a lost device."""
        if self._moved is not None:
            return self._moved
        try:
            rows = self._device.download(self._logits)
        except PtxError as error:
            raise RuntimeFailure(f"device: {error}") from None
        moved: F32 = rows[:, : self.n_vocab]
        self._moved, self._logits = moved, None
        return moved


class DeviceRow:
    """One row of a batch."""

    def __init__(self, batch: Batch, index: int) -> None:
        """Row `index`."""
        self._batch = batch
        self._index = index

    def array(self) -> F32:
        """The logits, float32 [V]; the first call for a batch moves all its rows."""
        row: F32 = self._batch.move()[self._index]
        return row

    def greedy(self) -> int:
        """The best token; RuntimeFailure for a row with a NaN, or without a finite best."""
        if not self.is_finite():
            raise RuntimeFailure(
                f"logits: the largest of {self._batch.n_vocab} is not finite, or one is NaN"
            )
        return self._batch.answers()[0][self._index][0]

    def signal(self) -> TokenSignal | None:
        """In float32 arithmetic: within 1e-5 of the host's."""
        if not self.is_finite():
            return None
        ids, values = self._batch.answers()
        entropy, top, second, margin = values[self._index]
        best, other = ids[self._index]
        return TokenSignal(entropy, top, second, margin, best, other)

    def expect(self, request: Callable[[], DrawRequest]) -> None:
        """Let the draw that comes be made together with the pass, and with others' of it."""
        self._batch.expect(self._index, request())

    def draw(self, request: Callable[[], DrawRequest]) -> Draw:
        """What the device draws; RuntimeFailure for a corrupt row, or without a token left."""
        return self._batch.draw(self._index, request)

    def is_finite(self) -> bool:
        """Whether the row has no NaN and a finite best."""
        return self._batch.answers()[0][self._index][0] >= 0

    def kept(self) -> "DeviceRow":
        """Itself: its buffer is not used again before the logits were moved."""
        return self


class Turns:
    """Which buffer comes next, and whose rows lie in it."""

    def __init__(self) -> None:
        """Begin with the first."""
        self._next = 0
        self._held: list[Callable[[], Batch | None]] = [lambda: None] * N_BUFFERS

    def take(self) -> int:
        """The buffer to write; rows of it that somebody still holds are in main memory then."""
        which, self._next = self._next, (self._next + 1) % N_BUFFERS
        batch = self._held[which]()
        if batch is not None:
            batch.move()
        return which

    def hold(self, which: int, batch: Batch) -> None:
        """Say that a batch lies in a buffer, which was taken for it."""
        self._held[which] = weakref.ref(batch)
