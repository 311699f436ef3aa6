"""Owns buffers in memory that numpy cannot see: an address, a shape, a dtype, and who frees it.

It must not know where the memory is. The protocol is `ptx.device.Buffer`; slices behave like those
of a numpy array along its outermost axis.
"""

import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from ptx.device import DeviceError
from ptx.numerics import DTYPES
from ptx.op import Shape


class Allocation:
    """Memory that is freed once nothing refers to it: buffers and their views hold it."""

    def __init__(self, address: int, n_bytes: int, free: Callable[[int], None]) -> None:
        self.address = address
        self.n_bytes = n_bytes
        # At exit the vendor's library may be gone already; the process gives all memory back.
        weakref.finalize(self, free, address).atexit = False


@dataclass(frozen=True, eq=False, slots=True)
class DeviceBuffer:
    """Cells of `dtype` at `address`, C-contiguous, in memory of `device` that `owner` keeps."""

    device: Any
    address: int
    shape: Shape
    dtype: str
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes that the cells take."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: Any, /) -> "DeviceBuffer":
        """View of a row, or of a run of rows; DeviceError for anything else or outside."""
        if not self.shape:
            raise DeviceError("a buffer without axes has no rows")
        if isinstance(rows, slice):
            start, stop, step = _run(rows, self.shape[0])
            if step != 1:
                raise DeviceError(f"rows {start}:{stop}:{step} of {self._shown()}: step must be 1")
            return self._view(start, (max(0, stop - start), *self.shape[1:]))
        try:
            row = operator.index(rows)
        except TypeError:
            raise DeviceError(f"{self._shown()} has no rows {rows!r}") from None
        if not -self.shape[0] <= row < self.shape[0]:
            raise DeviceError(f"row {row} of {self._shown()}")
        return self._view(row % self.shape[0], self.shape[1:])

    def reshape(self, shape: Shape) -> "DeviceBuffer":
        """The same cells under other axes; DeviceError for another number of them."""
        if min(shape, default=0) < 0 or prod(shape) != prod(self.shape):
            raise DeviceError(f"{self._shown()} as {list(shape)}: not as many cells")
        return DeviceBuffer(self.device, self.address, tuple(shape), self.dtype, self.owner)

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    def _view(self, first_row: int, shape: Shape) -> "DeviceBuffer":
        row_bytes = prod(self.shape[1:]) * DTYPES[self.dtype].itemsize
        address = self.address + first_row * row_bytes
        return DeviceBuffer(self.device, address, shape, self.dtype, self.owner)

    def _shown(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def _run(rows: slice, n_rows: int) -> tuple[int, int, int]:
    try:
        return rows.indices(n_rows)
    except (TypeError, ValueError) as error:
        raise DeviceError(f"rows {rows}: {error}") from None
