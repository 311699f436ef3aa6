"""Owns length-prefixed frames and bounded reads over a plain stream of bytes.

A frame is its length as u32 little-endian, then that many bytes, at most 8 MiB: the framing of the
mesh's other streams. It must not know what a frame says.

Time is bounded twice: a stream's own calls by its idle limit (`sockets.py`), and a whole frame or
piece by a `Deadline`, so that a peer which gives one byte at a time cannot hold a transfer. The
deadline is looked at between calls; a call that stalls ends at most one idle limit after it.
"""

import struct
import time
from dataclasses import dataclass
from typing import Protocol

from packages.layer_package.errors import TransferError

MAX_FRAME_BYTES = 8 << 20
# What one read asks for: a length that lies costs no more memory than has really come.
_READ_BYTES = 64 << 10
_LENGTH = struct.Struct("<I")

Data = bytes | bytearray | memoryview


class ByteStream(Protocol):
    """What a transfer runs over: one bidirectional stream of bytes with an authenticated peer."""

    def read(self, n_bytes: int, /) -> bytes:
        """1 to `n_bytes` bytes, or `b""` at the end of the stream. TransferError."""

    def write(self, data: Data, /) -> None:
        """All of `data`. TransferError."""

    def close(self) -> None:
        """End the stream; from another thread it also ends a call that waits. Twice is fine."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When something must have ended, on the monotonic clock, and what it is."""

    at: float
    what: str
    seconds: float

    @classmethod
    def after(cls, seconds: float, what: str) -> "Deadline":
        """`seconds` from now."""
        return cls(time.monotonic() + seconds, what, seconds)

    def check(self) -> None:
        """TransferError `transfer_timeout` when it has passed."""
        if time.monotonic() > self.at:
            raise TransferError(
                "transfer_timeout", f"{self.what} took longer than {self.seconds:g} s"
            )


def read_some(stream: ByteStream, n_bytes: int) -> bytes:
    """One read of at most `n_bytes`; a stream that gives more is refused, an OSError is
    `transfer_disconnected`."""
    try:
        data = stream.read(n_bytes)
    except OSError as e:
        raise TransferError("transfer_disconnected", f"the peer is gone: {e.strerror}") from e
    if len(data) > n_bytes:
        raise TransferError(
            "transfer_overrun", f"the stream gave {len(data)} bytes, {n_bytes} were asked for"
        )
    return data


def write_all(stream: ByteStream, data: Data) -> None:
    """Write everything; an OSError is `transfer_disconnected`."""
    try:
        stream.write(data)
    except OSError as e:
        raise TransferError("transfer_disconnected", f"the peer is gone: {e.strerror}") from e


def read_exact(stream: ByteStream, n_bytes: int, deadline: Deadline) -> bytes:
    """Exactly `n_bytes`. TransferError `transfer_truncated` at an early end, `transfer_timeout`."""
    parts: list[bytes] = []
    missing = n_bytes
    while missing:
        deadline.check()
        part = read_some(stream, min(missing, _READ_BYTES))
        if not part:
            raise TransferError(
                "transfer_truncated",
                f"the stream ended after {n_bytes - missing} of {n_bytes} bytes of {deadline.what}",
            )
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_frame(stream: ByteStream, deadline: Deadline, limit: int = MAX_FRAME_BYTES) -> bytes:
    """The next frame's bytes, of at most `limit`: `transfer_frame_too_large` before any is read."""
    (n_bytes,) = _LENGTH.unpack(read_exact(stream, _LENGTH.size, deadline))
    if n_bytes > limit:
        raise TransferError(
            "transfer_frame_too_large", f"a frame of {n_bytes} bytes, the limit is {limit}"
        )
    return read_exact(stream, n_bytes, deadline)


def write_frame(stream: ByteStream, data: bytes, limit: int = MAX_FRAME_BYTES) -> None:
    """One frame, in one write. TransferError as `read_frame`."""
    if len(data) > limit:
        raise TransferError(
            "transfer_frame_too_large", f"a frame of {len(data)} bytes, the limit is {limit}"
        )
    write_all(stream, _LENGTH.pack(len(data)) + data)
