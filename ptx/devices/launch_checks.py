"""Owns the checks that a launch on device buffers passes before anything runs.

It must not know devices nor any op by name. Each refusal is an OpError that names the op, the
parameter, what was found and what was expected.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ptx.devices.buffer import DeviceBuffer
from ptx.numerics import DTYPES
from ptx.op import Dims, Kernel, Launch, Op, OpError, Param, Shape, listed

MAX_U32 = 2**32 - 1
# The same on every GPU since sm_30.
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024


def _real(value: Any) -> bool:
    return type(value) in (float, int) or isinstance(value, np.floating)


def _integer_in(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


SCALARS: dict[str, Callable[[Any], bool]] = {
    "f32": _real,
    "f64": _real,
    "u32": _integer_in(0, MAX_U32),
    "i32": _integer_in(-(2**31), 2**31 - 1),
    "bool": lambda value: isinstance(value, bool),
}


def checked_dims(op: Op, args: dict[str, Any]) -> dict[str, int]:
    """Axis lengths of a launch; OpError for wrong names, dtypes, shapes or kinds of argument."""
    shapes: dict[str, Shape] = {}
    for param in op.params:
        if param.shape is None:
            continue
        value = args.get(param.name)
        if not isinstance(value, DeviceBuffer):
            found = type(value).__name__
            raise OpError(f"{op.name}: {param.name} is {found}, expected a device buffer")
        if value.dtype != param.dtype:
            raise OpError(f"{op.name}: {param.name} is {value.dtype}, expected {param.dtype}")
        shapes[param.name] = value.shape
    dims = op.bind(shapes)
    for axis, length in dims.items():
        if length > MAX_U32:
            raise OpError(f"{op.name}: {axis} is {length}, a kernel takes up to {MAX_U32}")
    names = sorted(param.name for param in op.given(dims))
    if sorted(args) != names:
        raise OpError(f"{op.name}: arguments {sorted(args)}, expected {names}")
    return dims


def checked_launch(op: Op, kernel: Kernel, dims: Dims) -> Launch:
    """The kernel's geometry for `dims`; OpError when no GPU takes it."""
    launch = kernel.launch(dims)
    grid, block = axes(launch.grid), axes(launch.block)
    if (
        any(not 1 <= n <= limit for n, limit in zip(grid, MAX_GRID, strict=True))
        or any(not 1 <= n <= limit for n, limit in zip(block, MAX_BLOCK, strict=True))
        or prod(block) > MAX_BLOCK_THREADS
    ):
        raise OpError(
            f"{op.name}: {kernel.stem}.ptx at {listed(dims)} needs grid {list(grid)} of blocks "
            f"{list(block)}; limits are {list(MAX_GRID)} and {list(MAX_BLOCK)}, "
            f"{MAX_BLOCK_THREADS} threads in a block"
        )
    return launch


def axes(extent: int | tuple[int, ...]) -> tuple[int, int, int]:
    """A grid or block as its three axes, x first."""
    given = (extent,) if isinstance(extent, int) else extent
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def checked_place(op: Op, param: Param, buffer: DeviceBuffer, device: Any) -> DeviceBuffer:
    """`buffer`, if it is of `device` and aligned as its parameter asks; OpError if not."""
    if buffer.device is not device:
        raise OpError(f"{op.name}: {param.name} is a buffer of another device")
    n_bytes = max(DTYPES[param.dtype].itemsize, param.align)
    if buffer.address % n_bytes:
        raise OpError(
            f"{op.name}: {param.name} is at 0x{buffer.address:x}, {param.dtype} needs a multiple "
            f"of {n_bytes}"
        )
    return buffer


def checked_scalar(op: Op, param: Param, value: Any) -> int | float:
    """`value` as the number that a kernel takes; OpError if it is not one of the dtype."""
    if not SCALARS[param.dtype](value):
        raise OpError(f"{op.name}: {param.name} is {value!r}, expected {param.dtype}")
    return float(value) if param.dtype in ("f32", "f64") else int(value)
