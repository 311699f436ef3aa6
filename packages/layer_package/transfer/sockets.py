"""Owns a transfer's stream over a connected socket, with the idle limit and a close that wakes.

It must not know frames, nor how the connection was made and the peer authenticated.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

from packages.layer_package.errors import TransferError
from packages.layer_package.transfer.frames import Data


class SocketStream:
    """A `ByteStream` over a stream socket that it owns from now on.

    Each read, and each write as a whole, has `idle_seconds`. `close` may be called from any
    thread: a call that waits in another one then fails at once. The descriptor itself is given
    back after the last such call, so that its number cannot become somebody else's meanwhile.
    """

    def __init__(self, connection: socket.socket, idle_seconds: float = 30.0) -> None:
        """Of a connected socket."""
        connection.settimeout(idle_seconds)
        self._socket = connection
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False

    def read(self, n_bytes: int, /) -> bytes:
        """1 to `n_bytes` bytes, or `b""` at the end. TransferError `transfer_timeout`,
        `transfer_disconnected`."""
        with self._call("read"):
            return self._socket.recv(n_bytes)

    def write(self, data: Data, /) -> None:
        """All of `data` within the idle limit. TransferError as `read`."""
        with self._call("write"):
            self._socket.sendall(data)

    def close(self) -> None:
        """End both directions."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._calls:
                self._socket.close()

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise TransferError("transfer_disconnected", f"{what} on a stream that is closed")
            self._calls += 1
        try:
            yield
        except TimeoutError as e:
            raise TransferError(
                "transfer_timeout", f"no {what} ended within {self._idle_seconds:g} s"
            ) from e
        except OSError as e:
            raise TransferError(
                "transfer_disconnected", f"the peer is gone in a {what}: {e.strerror}"
            ) from e
        finally:
            with self._lock:
                self._calls -= 1
                if self._closed and not self._calls:
                    self._socket.close()
