"""Owns what a tensor map says of a buffer, and the checks that it passes before a device makes it.

It must not know devices nor any op by name. Each refusal is an OpError that names the op, the
parameter, what was found and the limit. Contract: cuTensorMapEncodeTiled without interleaving.
"""

from dataclasses import dataclass
from math import prod

from ptx.numerics import DTYPES
from ptx.op import Dims, Kernel, Op, OpError, Shape, TensorMap

MAP_BYTES = 128
# The buffer begins, and each row of it and of a box ends, at a multiple of this.
RUN_BYTES = 16
MAX_AXES, MAX_BOX = 5, 256
MAX_LENGTH, MAX_STRIDE_BYTES = 2**32, 2**40
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class Tiled:
    """A map but for the address: cells of `dtype`, C-contiguous, [`shape`], taken by `box`."""

    dtype: str
    shape: Shape
    box: Shape
    swizzle: int


def checked_map(op: Op, kernel: Kernel, wish: TensorMap, dims: Dims) -> tuple[str, Tiled]:
    """The parameter that a kernel wants a map of, and the map; OpError when no GPU has it."""
    (param,) = (p for p in op.params if p.name == wish.param)
    shape = tuple(dims[axis] for axis in param.shape or ())
    tiled = Tiled(param.dtype, shape, wish.box, wish.swizzle)
    why = fault_of(tiled)
    if why is not None:
        raise OpError(f"{op.name}: {kernel.stem}.ptx: a tensor map of {param.name} "
                      f"{list(shape)} by {list(wish.box)} {why}")
    return param.name, tiled


def fault_of(tiled: Tiled) -> str | None:
    """Why there is no such map, or None."""
    n_bytes = DTYPES[tiled.dtype].itemsize
    row_bytes = tiled.box[-1] * n_bytes if tiled.box else 0
    strides = [prod(tiled.shape[at:]) * n_bytes for at in range(1, len(tiled.shape))]
    if not 1 <= len(tiled.shape) <= MAX_AXES or len(tiled.box) != len(tiled.shape):
        return f"needs 1 to {MAX_AXES} axes, and as many of the box"
    if not all(1 <= length <= MAX_BOX for length in tiled.box):
        return f"needs a box of 1 to {MAX_BOX} cells along each axis"
    if not all(1 <= length <= MAX_LENGTH for length in tiled.shape):
        return f"needs axes of 1 to {MAX_LENGTH} cells"
    if row_bytes % RUN_BYTES:
        return f"has rows of {row_bytes} bytes in a box, needs a multiple of {RUN_BYTES}"
    if any(stride % RUN_BYTES or stride >= MAX_STRIDE_BYTES for stride in strides):
        return f"has strides of {strides} bytes, needs multiples of {RUN_BYTES} below 2^40"
    if tiled.swizzle not in SWIZZLES:
        return f"has a swizzle of {tiled.swizzle} bytes, known: {', '.join(map(str, SWIZZLES))}"
    # Shorter rows are legal too; how they lie then has not been seen on a card.
    if tiled.swizzle and row_bytes != tiled.swizzle:
        return f"has rows of {row_bytes} bytes in a box, a swizzle of {tiled.swizzle}"
    return None


def checked_start(op: Op, name: str, address: int) -> None:
    """OpError unless a map may begin at `address`."""
    if address % RUN_BYTES:
        raise OpError(f"{op.name}: {name} is at 0x{address:x}, a tensor map needs a multiple of "
                      f"{RUN_BYTES}")
