"""Owns what a CUDA stream leaves behind: graphs captured from it, and events recorded on it.

The bindings come with the context; it must not know ops. Contract: stream capture and events of
the CUDA driver API. A graph keeps every buffer that it was captured with.
"""

from contextlib import suppress
from typing import Any

from ptx.device import DeviceError
from ptx.devices.cuda_context import Context, DriverError, Handle


class Graph:
    """Launches and copies recorded once; `replay` puts all of them on the stream in one call."""

    def __init__(self, context: Context, stream: Handle, name: str) -> None:
        self.name = name
        self._context = context
        self._stream = stream
        self._kept: dict[int, Any] = {}
        self._executable: Handle | None = None

    def keep(self, *things: Any) -> None:
        """Hold what the graph's addresses point to for as long as the graph lives."""
        self._kept.update((id(thing), thing) for thing in things)

    def begin(self) -> None:
        """Let the stream record.

        The relaxed mode, because others forbid memory calls to threads that have no part in this:
        the host process may use CUDA itself, and buffers are freed on any thread.
        """
        mode = self._context.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self._context:
            self._context.call("cuStreamBeginCapture", self._stream.value, mode)

    def end(self) -> None:
        """Make what was recorded ready to run; DeviceError if a call could not be recorded."""
        with self._context as context:
            try:
                recorded = context.call("cuStreamEndCapture", self._stream.value)
            except DriverError as error:
                raise DriverError(f"capture of {self.name}: {error}", error.code) from None
            graph = Handle(context, "cuGraphDestroy", recorded)
            executable = context.call("cuGraphInstantiate", graph.value, 0)
            self._executable = Handle(context, "cuGraphExecDestroy", executable)
            # Otherwise the first replay pays for it.
            context.call("cuGraphUpload", executable, self._stream.value)

    def abandon(self) -> None:
        """End a recording that has failed; what it failed with is the caller's to tell."""
        with suppress(DeviceError), self._context as context:
            recorded = context.call("cuStreamEndCapture", self._stream.value)
            Handle(context, "cuGraphDestroy", recorded)

    def replay(self) -> None:
        """Run the graph after everything that is on the stream; DeviceError while it is open."""
        if self._executable is None:
            raise DeviceError(f"{self.name}: its capture has not ended well, so nothing can run")
        with self._context as context:
            context.call("cuGraphLaunch", self._executable.value, self._stream.value)
            context.recent.append(self.name)


class Event:
    """A point on a stream: what was put there before `record` has run when it is reached."""

    def __init__(self, context: Context, stream: Handle) -> None:
        self._context = context
        self._stream = stream
        with context:
            flags = int(context.bindings.CUevent_flags.CU_EVENT_DEFAULT)
            self._handle = Handle(context, "cuEventDestroy", context.call("cuEventCreate", flags))

    def record(self) -> None:
        """Move the event to the stream's end."""
        with self._context as context:
            context.call("cuEventRecord", self._handle.value, self._stream.value)

    def synchronize(self) -> None:
        """Wait until the event is reached; a device fault before it is a DeviceError."""
        with self._context as context:
            context.call("cuEventSynchronize", self._handle.value)

    def milliseconds_since(self, earlier: "Event") -> float:
        """Device time between two reached events, good to half a microsecond."""
        with self._context as context:
            return float(
                context.call("cuEventElapsedTime", earlier._handle.value, self._handle.value)
            )
