"""Owns how stored weights cross to a device: through two page-locked halves by turns, one filled
while the other is on its way.

A device without page-locked memory copies by itself. It must not know forms nor files.
"""

from contextlib import suppress
from typing import Any

from ptx.numerics import Array
from ptx.op import PtxError

HALF_BYTES = 16 << 20


class Uploads:
    """A context manager: leaving it waits for what is under way, and gives the halves back."""

    def __init__(self, device: Any) -> None:
        """Of one device; DeviceError without the memory."""
        self._device = device
        self._halves: list[tuple[Array, Any]] = []
        self._n_sent = 0
        if hasattr(device, "pinned"):
            self._halves = [
                (device.pinned((HALF_BYTES,), "u8", "weights under way"), device.event())
                for _ in range(2)
            ]

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The halves must stand until the device has read them, whatever went wrong.
        if kind is None:
            self._device.synchronize()
        else:
            with suppress(PtxError):
                self._device.synchronize()
        self._halves.clear()

    def put(self, buffer: Any, cells: Array) -> None:
        """Bring an array's rows into a buffer of its shape and dtype, before what comes next. The
        array may go at once; DeviceError for another shape or dtype."""
        row_bytes = cells.nbytes // len(cells) if len(cells) else 0
        is_whole = cells.shape == buffer.shape and 0 < row_bytes <= HALF_BYTES
        if not (self._halves and is_whole):
            self._device.upload(buffer, cells)
            return
        step = HALF_BYTES // row_bytes
        for start in range(0, len(cells), step):
            rows = cells[start : start + step]
            half, sent = self._halves[self._n_sent % 2]
            if self._n_sent >= 2:
                sent.synchronize()
            part = half[: rows.nbytes].view(cells.dtype).reshape(rows.shape)
            part[...] = rows
            self._device.upload_async(buffer[start : start + len(rows)], part)
            sent.record()
            self._n_sent += 1
