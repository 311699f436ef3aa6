"""Owns one CUDA context: checked driver calls, which thread it is current on, and its death.

The bindings are passed in, so that this file runs without them; `ptx/devices/cuda.py` has them.
It must not know kernels or buffers. Contract: the CUDA driver API. It sets nothing on the device:
the primary context is shared with whatever else the process does with the card.
"""

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ptx.device import DeviceError

# After one of these the context answers every call with it, so the device is lost to the process.
# INVALID_CONTEXT is among them because ours is always current: somebody else has destroyed it.
FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "DEINITIALIZED", "DEVICE_UNAVAILABLE", "INVALID_CONTEXT", "ECC_UNCORRECTABLE",
        "NVLINK_UNCORRECTABLE", "CONTAINED", "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT",
        "CONTEXT_IS_DESTROYED", "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
        "TENSOR_MEMORY_LEAK", "SYSTEM_NOT_READY", "MPS_RPC_FAILURE", "MPS_CLIENT_TERMINATED",
        "EXTERNAL_DEVICE", "UNKNOWN",
    )
)
# A fault is reported by a later call; these many launches before it are named.
N_RECENT = 8


class DriverError(DeviceError):
    """The driver's refusal; `code` is its name in the driver API."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def call(bindings: Any, name: str, *args: Any) -> Any:
    """Call a driver function: its value, a tuple of several, None for none, or DriverError."""
    try:
        code, *values = getattr(bindings, name)(*args)
    except (RuntimeError, AttributeError, KeyError) as error:
        # A function that the driver or the bindings lack, or a result that the bindings lack.
        raise DeviceError(f"{name}: {error}") from None
    if code:
        raise DriverError(f"{name}: {described(bindings, code)}", code.name)
    return values[0] if len(values) == 1 else tuple(values) or None


def described(bindings: Any, code: Any) -> str:
    """Name, number and the driver's own words for a result."""
    text = bindings.cuGetErrorString(code)[1]
    return f"{code.name} ({int(code)}): {text.decode(errors='replace') if text else 'no text'}"


class _Depth(threading.local):
    """How often this thread has entered the context."""

    n_entered = 0


class Context:
    """The primary context of one GPU; `with context:` makes it current on the calling thread.

    Entering nests, costs one driver call at the outermost level, and leaves the thread with the
    context that it came with. Once a call has failed for good, entering raises what failed.
    """

    def __init__(self, bindings: Any, ordinal: int) -> None:
        self.name = f"CUDA{ordinal}"
        self.bindings = bindings
        self.lost: str | None = None
        self.recent: deque[str] = deque(maxlen=N_RECENT)
        call(bindings, "cuInit", 0)
        self.device = call(bindings, "cuDeviceGet", ordinal)
        self._handle = call(bindings, "cuDevicePrimaryCtxRetain", self.device)
        give_back = weakref.finalize(self, _release_primary, bindings, self.device)
        give_back.atexit = False
        self._push = bindings.cuCtxPushCurrent
        self._pop = bindings.cuCtxPopCurrent
        self._depth = _Depth()

    def __enter__(self) -> "Context":
        if self.lost is not None:
            raise DeviceError(
                f"{self.name} cannot be used until the process restarts, because of {self.lost}"
            )
        depth = self._depth
        if not depth.n_entered:
            code = self._push(self._handle)[0]
            if code:
                raise self.failure("cuCtxPushCurrent", code)
        depth.n_entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        depth = self._depth
        depth.n_entered -= 1
        if not depth.n_entered:
            code = self._pop()[0]
            # A lost context may answer with the loss, which has been told.
            if code and self.lost is None:
                raise self.failure("cuCtxPopCurrent", code)

    def call(self, name: str, *args: Any) -> Any:
        """`call` on this device: the error names it, and a fatal one is remembered."""
        try:
            return call(self.bindings, name, *args)
        except DriverError as error:
            raise self._noted(error) from None

    def failure(self, name: str, code: Any) -> DriverError:
        """The error for a result that was read without `call`."""
        return self._noted(DriverError(f"{name}: {described(self.bindings, code)}", code.name))

    def _noted(self, error: DriverError) -> DriverError:
        message = f"{self.name}: {error}"
        if error.code in FATAL:
            if self.recent:
                message += f"; last launches not waited for: {', '.join(self.recent)}"
            self.lost = message
        return DriverError(message, error.code)

    def synchronize(self, stream: Any) -> None:
        """Wait for a stream; faults of what it ran come out here."""
        self.call("cuStreamSynchronize", stream)
        self.recent.clear()

    def release(
        self, name: str, value: Any, _leaving: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Give something back from a finaliser, on any thread: raises nothing.

        A lost context has nothing to give back, and at exit the driver may be gone before us.
        """
        if self.lost is None and not _leaving():
            with suppress(DeviceError), self:
                self.call(name, value)


def _release_primary(
    bindings: Any, device: Any, _leaving: Callable[[], bool] = sys.is_finalizing
) -> None:
    if not _leaving():
        with suppress(DeviceError):
            call(bindings, "cuDevicePrimaryCtxRelease", device)


class Handle:
    """A driver's object, given back by the function `give_back` once nothing refers to it."""

    def __init__(self, context: Context, give_back: str, value: Any) -> None:
        self.value = value
        weakref.finalize(self, context.release, give_back, value).atexit = False
