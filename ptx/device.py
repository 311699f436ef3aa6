"""Owns the protocol between the engine and whatever runs ops: buffers, copies, launches.

It must not know vendors, models or steps; each device is one file in `ptx/devices/`. Dtypes are
words of `ptx.numerics.DTYPES`. A device is used by one thread at a time.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ptx.numerics import Array
from ptx.op import Op, PtxError


class DeviceError(PtxError):
    """The device cannot do it: no memory, or a copy between buffers that do not match."""


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of the device, in bytes."""

    free_bytes: int
    total_bytes: int


class Buffer(Protocol):
    """Device memory with a shape, C-contiguous; only its device can read it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Axis lengths, outermost first."""

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer's cells take."""

    def __getitem__(self, rows: Any, /) -> Any:
        """A view: `b[i]` drops the outermost axis, `b[i:j]` keeps a run of it."""


class Device(Protocol):
    """One place that ops run on. Launches and copies take effect in call order."""

    @property
    def name(self) -> str:
        """Short and stable: `host`."""

    @property
    def description(self) -> str:
        """For people: which hardware this is."""

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        """What kind of memory and processor the device has."""

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes now."""

    def allocate(self, shape: tuple[int, ...], dtype: str, name: str) -> Buffer:
        """A new buffer, content unspecified; DeviceError names it, its bytes and the free ones."""

    def upload(self, buffer: Buffer, array: Array) -> None:
        """Copy `array`, cast to the buffer's dtype, into a buffer of the same shape."""

    def download(self, buffer: Buffer) -> Array:
        """A copy of the buffer's content, once everything before has run."""

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy between buffers of the same shape and dtype that do not overlap."""

    def launch(self, op: Op, **args: Any) -> None:
        """Run `op` on named buffers and scalars; OpError names op, parameter, found, expected."""

    def synchronize(self) -> None:
        """Return once every launch and copy has finished."""
