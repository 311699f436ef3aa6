"""Owns the records that describe an op (Op, Param, Kernel, Launch, TensorMap,
Target) and the choice `pick`.

It must not know devices, models or what any op computes: each `ptx/<op>/op.py` states that. An
op's float64-clean reference is the function of the op's name in `ptx/<op>/ref.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

Dims = Mapping[str, int]
Shape = tuple[int, ...]
Constant = int | float | str | bool


class PtxError(Exception):
    """Base of every refusal that T0 makes on purpose."""


class OpError(PtxError):
    """A launch does not match the op's parameters, or no kernel of the op fits."""


@dataclass(frozen=True)
class Param:
    """One parameter: a buffer when `shape` names its axes, outermost first, else a scalar.

    `out` marks a buffer that is written; whether it is read before is in the op's contract. A
    `partial` one is a cache or a pool, of which a launch writes what its other arguments say.
    A scalar named like an axis is filled in from the buffers' shapes, never by the caller.
    A buffer starts at a multiple of `align` bytes, or of its cell where that is more.
    What a `scratch` one holds means nothing before a launch and nothing after it.
    """

    name: str
    dtype: str
    shape: tuple[str, ...] | None = None
    out: bool = False
    partial: bool = False
    align: int = 1
    scratch: bool = False


def buf(
    name: str, dtype: str, shape: str, out: bool = False, partial: bool = False, align: int = 1,
    scratch: bool = False,
) -> Param:
    """A buffer parameter, C-contiguous, with its axes as letters: `buf("x", "f32", "T D")`."""
    return Param(name, dtype, tuple(shape.split()), out, partial, align, scratch)


@dataclass(frozen=True)
class Launch:
    """Geometry of one launch: blocks, threads in a block, dynamic shared bytes.

    A `programmatic` one may begin before the launch ahead has ended (programmatic dependent launch,
    from sm_90 on): its kernel says `griddepcontrol.wait` before it touches what that one writes.
    """

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    shared_bytes: int = 0
    programmatic: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A tensor map of the buffer `param`, for `cp.async.bulk.tensor`: how to take boxes out of it.

    A box is so many cells along each of the parameter's axes, outermost first; cells outside the
    buffer come as zeros. With a `swizzle` of 32, 64 or 128 bytes a box's rows are as long, and
    their runs of 16 bytes change places as wgmma expects it.
    """

    param: str
    box: Shape
    swizzle: int = 0


def _any_dims(dims: Dims) -> bool:
    return True


def _no_dims(dims: Dims) -> bool:
    return False


def _no_constants(dims: Dims) -> Mapping[str, Constant]:
    return {}


def _no_maps(dims: Dims) -> tuple[TensorMap, ...]:
    return ()


@dataclass(frozen=True)
class Kernel:
    """One PTX file of an op: `<target>.ptx` in the op's folder, and how it is launched.

    `fits` is the written, measured rule for which dims it serves, and `leads` for which of them it
    goes before kernels that the record lists ahead of it; `special` lists instructions that not
    every target has; `constants` are what its source is rendered with (`ptx.template`).
    A `form` tells several of one target apart: `<target>_<form>.ptx`. Behind the op's parameters
    the entry has one for each of `maps`: `.param .align 64 .b8 <param>_map[128]`.
    """

    target: str
    launch: Callable[[Dims], Launch]
    fits: Callable[[Dims], bool] = _any_dims
    special: tuple[str, ...] = ()
    constants: Callable[[Dims], Mapping[str, Constant]] = _no_constants
    form: str = ""
    maps: Callable[[Dims], tuple[TensorMap, ...]] = _no_maps
    leads: Callable[[Dims], bool] = _no_dims

    @property
    def stem(self) -> str:
        """The name of its file."""
        return f"{self.target}_{self.form}" if self.form else self.target


@dataclass(frozen=True)
class Target:
    """A row of `targets.toml`: a kind of GPU, and the kernel targets that run on it."""

    name: str
    arch: str
    ptx_version: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Op:
    """A closed computation: its parameters in PTX order, its kernels, best first (but see
    `Kernel.leads`).

    `requires` holds what shapes alone do not say, as a sentence and its check. `examples` are
    dims of real use, for which the assembly gate renders every kernel.
    """

    name: str
    params: tuple[Param, ...]
    tolerance: str
    kernels: tuple[Kernel, ...] = ()
    requires: Mapping[str, Callable[[Dims], bool]] = field(default_factory=dict)
    examples: tuple[Dims, ...] = ()

    def bind(self, shapes: Mapping[str, Shape]) -> dict[str, int]:
        """Axis lengths that follow from the buffers' shapes.

        A buffer may have more axes than its parameter: the trailing ones fold into the last
        letter, so [T, H, E] serves where [T, K] is asked, with K = H E. Raises OpError naming
        op, parameter, shape and what was expected.
        """
        dims: dict[str, int] = {}
        for param in self.params:
            if param.shape is None:
                continue
            found = shapes[param.name]
            folded = fold(found, len(param.shape))
            expected = [dims.get(axis, axis) for axis in param.shape]
            if len(folded) != len(param.shape) or min(folded) < 1 or any(
                isinstance(e, int) and e != f for e, f in zip(expected, folded, strict=True)
            ):
                raise OpError(
                    f"{self.name}: {param.name} is {list(found)}, expected "
                    f"[{', '.join(map(str, expected))}] with every axis at least 1"
                )
            dims.update(zip(param.shape, folded, strict=True))
        for sentence, holds in self.requires.items():
            if not holds(dims):
                raise OpError(f"{self.name}: needs {sentence}, found {listed(dims)}")
        return dims

    def best_first(self, dims: Dims) -> list[Kernel]:
        """The kernels in the order in which they are tried: as listed, but what leads ahead."""
        return sorted(self.kernels, key=lambda kernel: not kernel.leads(dims))

    def given(self, dims: Dims) -> tuple[Param, ...]:
        """Parameters that a caller passes: all but the scalars that shapes determine."""
        return tuple(p for p in self.params if p.shape is not None or p.name not in dims)


def fold(shape: Shape, n_axes: int) -> Shape:
    """`shape` with its trailing axes multiplied into one, so that at most `n_axes` remain."""
    if len(shape) <= n_axes:
        return shape
    return (*shape[: n_axes - 1], prod(shape[n_axes - 1 :]))


def pick(op: Op, target: Target, dims: Dims) -> Kernel:
    """The first kernel that runs on `target` and fits `dims`; OpError names all three if none."""
    for kernel in op.best_first(dims):
        if kernel.target in target.runs and kernel.fits(dims):
            return kernel
    have = ", ".join(kernel.stem for kernel in op.kernels) or "none"
    raise OpError(
        f"{op.name}: no kernel fits target {target.name} at {listed(dims)}; kernels: {have}"
    )


def listed(dims: Dims) -> str:
    """Dims for a message: `T=3 D=576`."""
    return " ".join(f"{axis}={length}" for axis, length in dims.items())
