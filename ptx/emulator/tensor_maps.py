"""Owns the emulator's tensor maps: 128 bytes as a kernel gets them, and what a box of one touches.

It must not know registers. The bytes are our own, a card's are secret; what they may say is the
contract of cuTensorMapEncodeTiled without interleaving, checked before by whoever makes them.
"""

import struct
from math import prod
from typing import NamedTuple

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.numerics import Array

N_BYTES, ALIGNMENT = 128, 64
MARK = b"emulated map"
MAX_AXES, RUN = 5, 16
# Mark, axes, bytes of a cell, swizzle, address, lengths, box.
FORM = struct.Struct("<12sBBHQ5Q5H")


class TensorMap(NamedTuple):
    """Cells of `cell_bytes` at `address`, axes outermost first, C-contiguous."""

    address: int
    cell_bytes: int
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def box_bytes(self) -> int:
        """Bytes of a box, those outside the tensor too."""
        return prod(self.box) * self.cell_bytes


class Rows(NamedTuple):
    """Rows of a box, by their bytes: places in the box, and in the tensor, or none of those.

    `to` [rows, bytes] are offsets from the box's start as they lie there; `source` those from the
    tensor's start, None for rows of zeros alone; `inside` tells the bytes that have a source.
    """

    to: Array
    source: Array | None
    inside: Array | None


def encoded(
    address: int, cell_bytes: int, shape: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> bytes:
    """The 128 bytes of a map."""
    more = (0,) * (MAX_AXES - len(shape))
    raw = FORM.pack(MARK, len(shape), cell_bytes, swizzle, address, *shape, *more, *box, *more)
    return raw.ljust(N_BYTES, b"\0")


def decoded(raw: bytes, sel: Sel) -> TensorMap:
    """The map of 128 bytes; Fault when they are none."""
    mark, n, cell_bytes, swizzle, address, *numbers = FORM.unpack_from(raw)
    if mark != MARK:
        raise Fault("undefined", "the bytes are no tensor map", np.asarray(sel))
    return TensorMap(
        address, cell_bytes, tuple(numbers[:n]), tuple(numbers[MAX_AXES : MAX_AXES + n]), swizzle
    )


def rows_of(tensor: TensorMap, start: tuple[int, ...], to: int) -> list[Rows]:
    """The rows of the box at `start` (outermost axis first), bound for address `to` of shared
    memory: those that lie in the tensor, at least in part, and those that do not."""
    *outer, width = tensor.box
    row_bytes = width * tensor.cell_bytes
    # Cell numbers of the rows along each axis but the last, and which rows are in the tensor.
    at = np.indices(outer).reshape(len(outer), prod(outer))
    at += np.array(start[:-1], np.int64)[:, None]
    lengths = np.array(tensor.shape[:-1], np.int64)[:, None]
    known: Array = np.asarray(((at >= 0) & (at < lengths)).all(axis=0))
    number = np.zeros(at.shape[1], np.int64)
    for index, length in zip(at, tensor.shape[:-1], strict=True):
        number = number * length + index
    cells = start[-1] + np.arange(width)
    within = np.repeat((cells >= 0) & (cells < tensor.shape[-1]), tensor.cell_bytes)
    known = known & within.any()
    offsets = _swizzled(to, np.arange(len(known))[:, None] * row_bytes + np.arange(row_bytes),
                        tensor.swizzle)
    found = []
    if known.any():
        span = start[-1] * tensor.cell_bytes + np.arange(row_bytes)
        span = np.clip(span, 0, tensor.shape[-1] * tensor.cell_bytes - 1)
        source = number[known][:, None] * tensor.shape[-1] * tensor.cell_bytes + span
        inside = None if within.all() else np.broadcast_to(within, source.shape)
        found.append(Rows(offsets[known], source, inside))
    if not known.all():
        found.append(Rows(offsets[~known], None, None))
    return found


def _swizzled(to: int, offsets: Array, swizzle: int) -> Array:
    """Offsets in a box after its runs of 16 bytes have changed places.

    The pattern is of the address: the number of the line of 128 bytes, mod 8, 4 or 2, by exclusive
    or into the number of the run.
    """
    if not swizzle:
        return offsets
    address = to + offsets
    line = address >> 7
    found: Array = (address ^ (line & (swizzle // RUN - 1)) << 4) - to
    return found
