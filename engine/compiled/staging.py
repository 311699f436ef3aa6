"""Owns how a pass's few numbers cross between main memory and the device.

Page-locked memory where the device has it, so that a copy is put on the stream and nobody waits,
and can be captured with the kernels around it; other devices copy at once. It must not know what
the numbers mean.
"""

from typing import Any

import numpy as np

from ptx.numerics import DTYPES, Array


class Staging:
    """Arrays of main memory that are copied to and from buffers of one device.

    What crosses lies still until the device has been waited for: `wait` does, and `settle` where
    something may be under way.
    """

    def __init__(self, device: Any) -> None:
        """Nothing is under way."""
        self._device = device
        self._is_async = hasattr(device, "pinned")
        self._under_way = False
        # How often everything has been waited for.
        self.n_waits = 0

    def array(self, shape: tuple[int, ...], dtype: str, name: str) -> Array:
        """An array of zeros that can be sent and fetched."""
        if not self._is_async:
            return np.zeros(shape, DTYPES[dtype])
        cells: Array = self._device.pinned(shape, dtype, name)
        cells[...] = 0
        return cells

    def send(self, buffer: Any, cells: Array) -> None:
        """Copy an array of ours into a buffer of its shape and dtype, before what comes next."""
        if self._is_async:
            self._device.upload_async(buffer, cells)
        else:
            self._device.upload(buffer, cells)

    def fetch(self, buffer: Any, cells: Array) -> None:
        """Copy a buffer into an array of ours, after what came before; it is there after `wait`."""
        if self._is_async:
            self._device.download_async(buffer, cells)
        else:
            cells[...] = self._device.download(buffer)

    def begin(self) -> None:
        """Say that copies are about to be put on the stream, by a graph too."""
        self._under_way = self._is_async

    def settle(self) -> None:
        """Arrays may change from here on."""
        if self._under_way:
            self.wait()

    def wait(self) -> None:
        """Return once everything has run."""
        if self._is_async:
            self._device.synchronize()
        self._under_way = False
        self.n_waits += 1
