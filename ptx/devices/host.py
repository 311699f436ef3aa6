"""Owns the `host` device: each op's `ref.py`, run by numpy on arrays in main memory.

It must not know models, nor any op by name. The protocol is `ptx/device.py`. A row's result does
not depend on the other rows of a launch; each op's `ref.py` says how it sees to that.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptx.device import DeviceError, MemoryInfo
from ptx.numerics import DTYPES, POISON, Array
from ptx.op import Op, OpError, Shape, fold

MEMINFO = Path("/proc/meminfo")
SCALARS: dict[str, tuple[type, ...]] = {
    "f32": (float, int),
    "u32": (int,),
    "bool": (bool,),
}
# A bound on remembered signatures, for a caller whose shapes never repeat.
MAX_PLANS = 4096


@dataclass(frozen=True)
class _Plan:
    """A checked signature: the function to call, and the arguments to fold first."""

    function: Callable[..., Any]
    folds: tuple[tuple[str, Shape], ...]


class HostDevice:
    """Numpy arrays as buffers; `poison` fills new ones so that a read before a write shows."""

    name = "host"
    kind: Literal["cpu", "gpu"] = "cpu"

    def __init__(self, poison: bool = False) -> None:
        self.description = (
            f"{platform.machine()} CPU, {os.cpu_count()} threads, numpy {np.__version__}"
        )
        self._poison = poison
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes of main memory; both 0 where the system does not say."""
        try:
            lines = MEMINFO.read_text().splitlines()
            kib = {key: int(rest.split()[0]) for key, _, rest in (s.partition(":") for s in lines)}
            return MemoryInfo(kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024)
        except (OSError, KeyError, IndexError, ValueError):
            return _memory_by_sysconf()

    def allocate(self, shape: Shape, dtype: str, name: str) -> Array:
        """A zero or poisoned array; zeroed pages cost nothing until they are first written."""
        try:
            array: Array = np.zeros(shape, DTYPES[dtype])
            if self._poison:
                array.fill(POISON[dtype])
        except KeyError:
            raise DeviceError(f"{name}: dtype {dtype!r}, known: {', '.join(DTYPES)}") from None
        except (MemoryError, ValueError) as error:
            wanted = prod(shape) * DTYPES[dtype].itemsize
            raise DeviceError(
                f"{name}: {wanted} bytes for {dtype} {list(shape)}, "
                f"{self.memory_info().free_bytes} free ({error})"
            ) from None
        return array

    def upload(self, buffer: Any, array: Array) -> None:
        """Copy `array`, cast to the buffer's dtype, into `buffer`."""
        _same_shape("upload", array.shape, buffer.shape)
        buffer[...] = array

    def download(self, buffer: Any) -> Array:
        """A copy of `buffer`."""
        return np.array(buffer)

    def copy(self, source: Any, target: Any) -> None:
        """Copy `source` into `target`."""
        _same_shape("copy", source.shape, target.shape)
        target[...] = source

    def launch(self, op: Op, **args: Any) -> None:
        """Run the op's reference on `args`; the first launch of a signature checks it."""
        key = (
            op.name,
            *[
                (name, a.shape, a.strides, a.dtype) if type(a) is np.ndarray else (name, type(a))
                for name, a in args.items()
            ],
        )
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = _checked(op, args)
        for name, shape in plan.folds:
            args[name] = args[name].reshape(shape)
        # As on a GPU, a value that is not finite travels on and raises nothing here.
        with np.errstate(all="ignore"):
            plan.function(**args)

    def synchronize(self) -> None:
        """Nothing to wait for: a launch returns when it is done."""


def _memory_by_sysconf() -> MemoryInfo:
    try:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        total = page_bytes * os.sysconf("SC_PHYS_PAGES")
        return MemoryInfo(page_bytes * os.sysconf("SC_AVPHYS_PAGES"), total)
    except (AttributeError, ValueError, OSError):
        return MemoryInfo(0, 0)


def _same_shape(call: str, found: Shape, expected: Shape) -> None:
    if found != expected:
        raise DeviceError(f"{call}: source is {list(found)}, target is {list(expected)}")


def _checked(op: Op, args: dict[str, Any]) -> _Plan:
    """Check names, dtypes, layout and shapes of a launch; OpError says which one is wrong."""
    shapes: dict[str, Shape] = {}
    for param in op.params:
        if param.shape is not None:
            shapes[param.name] = _checked_buffer(op, param.name, param.dtype, args)
    given = op.given(op.bind(shapes))
    names = [param.name for param in given]
    if set(args) != set(names):
        raise OpError(f"{op.name}: arguments {sorted(args)}, expected {sorted(names)}")
    folds = []
    for param in given:
        value = args[param.name]
        if param.shape is not None:
            if value.ndim > len(param.shape):
                folds.append((param.name, fold(value.shape, len(param.shape))))
        elif not isinstance(value, SCALARS[param.dtype]):
            raise OpError(f"{op.name}: {param.name} is {value!r}, expected {param.dtype}")
    return _Plan(getattr(import_module(f"ptx.{op.name}.ref"), op.name), tuple(folds))


def _checked_buffer(op: Op, name: str, dtype: str, args: dict[str, Any]) -> Shape:
    value: Array | None = args.get(name)
    if not isinstance(value, np.ndarray):
        raise OpError(f"{op.name}: {name} is {type(value).__name__}, expected a host buffer")
    if value.dtype != DTYPES[dtype]:
        raise OpError(f"{op.name}: {name} is {value.dtype}, expected {dtype}")
    if not value.flags.c_contiguous:
        raise OpError(f"{op.name}: {name} {list(value.shape)} is not contiguous")
    return value.shape
