"""Owns how an op's tests run it: poisoned buffers, guard rows, untouched inputs, row invariance.

It must not know any op. What each op must compute is in its `op.py`, the judge is its `ref.py`
in float64. The fixture `bench` runs the reference on the host device, `kernels` the op's kernels
on devices that take PTX.
Long because devices, kernels and guards meet here, and every op's tests read it in one place.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import count
from math import prod
from typing import Any

import numpy as np
import pytest

from ptx.devices.host import HostDevice
from ptx.numerics import DTYPES, POISON, Array, mismatch, widen_bf16
from ptx.op import Kernel, Op, Param, fold

Arrays = dict[str, Array]
# The emulator draws the order of warps and blocks from a seed; results may not depend on it.
SEEDS = (0, 1, 2)
# Ops whose kernels use an instruction that hardware may round otherwise, within the ISA's bound;
# everything else has the emulator's bits on a card too. attention: ex2.approx.f32, 2 ulp.
APPROXIMATE = {"attention"}
# The same for a kernel that lists one of these as special:
# KNOWLEDGE/findings/mma-on-hopper-is-off-by-one-unit-of-the-sum.md.
APPROXIMATE_WORDS = ("mma.", "wgmma.", ".approx")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end: no collection of garbage need look at them."""
    gc.collect()
    gc.freeze()


class OpBench:
    """Runs ops on a device; arguments are numpy arrays and scalars by name."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def run(self, op: Op, n_guard: int = 1, **args: Any) -> Arrays:
        """Launch `op` and return what it wrote; outputs that are not given start as poison.
        Scratch always does: what is given says its shape alone, and what it ends as is not told.

        Each buffer lies between at least `n_guard` poisoned rows, which no launch may touch;
        inputs keep their bits. An odd `n_guard` with odd rows also moves buffers off any alignment
        that their parameter does not ask for.
        """
        buffers = tuple(param for param in op.params if param.shape is not None)
        before, guards = {}, {}
        for param, shape in zip(buffers, _shapes(buffers, args).values(), strict=True):
            guard = guards[param.name] = _guard(param, shape, n_guard)
            cells = np.full((shape[0] + 2 * guard, *shape[1:]), POISON[param.dtype])
            before[param.name] = cells.astype(DTYPES[param.dtype])
            if param.name in args and not param.scratch:
                before[param.name][guard : guard + shape[0]] = args[param.name]
        whole = {p.name: self._uploaded(p, before[p.name]) for p in buffers}
        views = {
            name: b[guards[name] : len(before[name]) - guards[name]] for name, b in whole.items()
        }
        self.device.launch(op, **{**args, **views})
        after = {name: self.device.download(buffer) for name, buffer in whole.items()}
        if hasattr(self.device, "capture"):
            self._check_replay(op, {**args, **views}, whole, before, after)
        written = {}
        for param in buffers:
            cells, start = after[param.name], before[param.name]
            if param.out:
                rows = slice(guards[param.name], len(start) - guards[param.name])
                if not param.scratch:
                    written[param.name] = cells[rows].copy()
                cells[rows] = start[rows]
            assert cells.tobytes() == start.tobytes(), f"{op.name} wrote outside: {param.name}"
        return written

    def _check_replay(
        self, op: Op, args: dict[str, Any], whole: dict[str, Any], before: Arrays, after: Arrays
    ) -> None:
        """The launch replayed from a captured graph, twice, leaves the same bits."""
        with self.device.capture(op.name) as graph:
            self.device.launch(op, **args)
        for _ in range(2):
            for name, buffer in whole.items():
                self.device.upload(buffer, before[name])
            graph.replay()
            for name, buffer in whole.items():
                same = self.device.download(buffer).tobytes() == after[name].tobytes()
                assert same, f"{op.name}: {name} of a replayed graph has other bits"

    def _uploaded(self, param: Param, cells: Array) -> Any:
        buffer = self.device.allocate(cells.shape, param.dtype, param.name)
        self.device.upload(buffer, cells)
        return buffer

    def alone(self, op: Op) -> Op:
        """`op` as this bench runs it, for a launch that the bench does not make."""
        return op

    def check(self, op: Op, **args: Any) -> None:
        """Compare a launch with the reference in float64 on the same rounded inputs."""
        got = self.run(op, **args)
        for name, want in _oracle(op, args).items():
            report = _mismatch(op, name, got[name], want)
            assert report is None, f"{op.name}: {name}: {report}"

    def check_rows_alone(self, op: Op, per_token: tuple[str, ...], **args: Any) -> None:
        """Rows have the same bits alone, in random runs, reordered, and off their alignment.

        `per_token` names the given arguments whose outermost axis is T; all outputs have it.
        """
        rng = np.random.default_rng(7)
        n_tokens = len(args[per_token[0]])
        whole = self.run(op, **args)
        for rows in _row_choices(n_tokens, rng):
            part = {name: args[name][rows] for name in per_token}
            got = self.run(op, n_guard=int(rng.integers(1, 6)), **{**args, **part})
            for name, array in got.items():
                same = array.tobytes() == whole[name][rows].tobytes()
                assert same, f"{op.name}: {name} of rows {rows.tolist()} of {n_tokens} has new bits"


class KernelBench(OpBench):
    """Runs one kernel of an op on several devices, which must agree in every bit."""

    def __init__(self, kernel: Kernel, devices: list[Any]) -> None:
        super().__init__(devices[0])
        self._kernel = kernel
        self._benches = [OpBench(device) for device in devices]
        self._is_mixed = len({device.name for device in devices}) > 1
        self._is_approximate = any(
            word in special for special in kernel.special for word in APPROXIMATE_WORDS
        )

    def alone(self, op: Op) -> Op:
        """`op` with this bench's kernel alone."""
        return replace(op, kernels=tuple(k for k in op.kernels if k.stem == self._kernel.stem))

    def run(self, op: Op, n_guard: int = 1, **args: Any) -> Arrays:
        """As `OpBench.run`, on every device."""
        alone = self.alone(op)
        first, *others = (bench.run(alone, n_guard, **args) for bench in self._benches)
        for other in others:
            for name, array in first.items():
                if self._is_mixed and (self._is_approximate or op.name in APPROXIMATE):
                    report = _mismatch(op, name, *_without_shared_nans(other[name], array))
                    assert report is None, f"{op.name}: {name} by device: {report}"
                else:
                    same = array.tobytes() == other[name].tobytes()
                    assert same, f"{op.name}: {name} differs by device or seed"
        return first

    def check(self, op: Op, **args: Any) -> None:
        """As `OpBench.check`, and once without guards or poison, where a device's own checks of
        bounds and of cells that nobody wrote see most."""
        super().check(op, **args)
        self.run_bare(op, **args)

    def run_bare(self, op: Op, **args: Any) -> None:
        """Launch on buffers that end where their cells end, outputs never written before."""
        alone = self.alone(op)
        buffers = tuple(param for param in op.params if param.shape is not None)
        placed = {}
        for param, shape in zip(buffers, _shapes(buffers, args).values(), strict=True):
            placed[param.name] = self.device.allocate(shape, param.dtype, param.name)
            if param.name in args and not param.scratch:
                cells = np.asarray(args[param.name]).astype(DTYPES[param.dtype])
                self.device.upload(placed[param.name], cells)
        self.device.launch(alone, **{**args, **placed})
        self.device.synchronize()


def _without_shared_nans(one: Array, other: Array) -> tuple[Array, Array]:
    """Both, with zeros where both are NaN: two devices agree there."""
    if one.dtype.kind != "f":
        return one, other
    shared = np.isnan(one) & np.isnan(other)
    return np.where(shared, 0, one), np.where(shared, 0, other)


def _guard(param: Param, shape: tuple[int, ...], n_least: int) -> int:
    """The fewest rows, `n_least` or more, behind which the buffer is aligned as it must be."""
    row_bytes = prod(shape[1:]) * DTYPES[param.dtype].itemsize
    return next(n for n in count(n_least) if n * row_bytes % param.align == 0)


def _mismatch(op: Op, name: str, got: Array, want: Array) -> str | None:
    """`mismatch` of an output's numbers: bf16 that need not be equal bit by bit is widened."""
    (param,) = (p for p in op.params if p.name == name)
    if param.dtype == "bf16" and op.tolerance != "exact":
        got, want = (widen_bf16(a) if a.dtype == np.uint16 else a for a in (got, want))
    return mismatch(got, want, op.tolerance)


Benches = Callable[..., Iterator[KernelBench]]


@pytest.fixture
def bench() -> OpBench:
    """A bench with a host device of its own."""
    return OpBench(HostDevice(poison=True))


@pytest.fixture(params=[
    "emulator",
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("both", marks=pytest.mark.gpu),
])
def kernels(request: pytest.FixtureRequest) -> Benches:
    """A function from an op to one bench for each of its kernels that the device takes.

    Given arguments of a launch too, only for the kernels that fit them; at least one must.
    "both" runs them on a card and on the emulator, which must agree in every bit.
    """
    makers: dict[str, Callable[[str], list[Any]]] = {
        "emulator": _emulators, "cuda": _gpus, "both": _gpu_and_emulator,
    }
    devices = makers[request.param]

    def benches(op: Op, **args: Any) -> Iterator[KernelBench]:
        able = [k for k in op.kernels if devices(k.target)]
        if args:
            buffers = tuple(param for param in op.params if param.shape is not None)
            dims = op.bind(_shapes(buffers, args))
            able = [k for k in able if k.fits(dims)]
        assert able or request.param != "emulator", f"{op.name} has no kernel"
        for kernel in able:
            yield KernelBench(kernel, devices(kernel.target))

    return benches


@pytest.fixture(autouse=True, scope="module")
def _forget_emulators() -> Iterator[None]:
    """What emulators keep of an op's kernels, millions of objects, goes with the op's tests; until
    then looking over it for garbage, again and again, would find none."""
    gc.disable()
    yield
    _emulators.cache_clear()
    gc.enable()
    gc.collect()


@cache
def _emulators(target: str) -> list[Any]:
    from ptx.devices.emulator import EmulatorDevice

    return [EmulatorDevice(target=target, seed=seed) for seed in SEEDS]


def _gpus(target: str) -> list[Any]:
    device = _gpu()
    return [device] if target in device.target.runs else []


def _gpu_and_emulator(target: str) -> list[Any]:
    gpus = _gpus(target)
    return [*gpus, *_emulators(target)[:1]] if gpus else []


@cache
def _gpu() -> Any:
    from ptx.devices.cuda import CudaDevice, available

    found = available()
    if isinstance(found, str):
        pytest.skip(found)
    return CudaDevice()


def _row_choices(n_tokens: int, rng: np.random.Generator) -> list[Array]:
    """Every row alone, the runs between random borders, and two random orders."""
    alone = [np.array([row]) for row in range(n_tokens)]
    borders = np.sort(rng.integers(0, n_tokens, 4))
    runs = [run for run in np.split(np.arange(n_tokens), borders) if len(run)]
    orders = [rng.permutation(n_tokens), rng.permutation(n_tokens)[: n_tokens // 2 + 1]]
    return [*alone, *runs, *orders]


def _shapes(buffers: tuple[Param, ...], args: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all buffers; those that are not given follow from those that are."""
    shapes = {p.name: np.shape(args[p.name]) for p in buffers if p.name in args}
    dims: dict[str, int] = {}
    for param in buffers:
        axes = param.shape or ()
        if param.name in shapes:
            dims.update(zip(axes, fold(shapes[param.name], len(axes)), strict=True))
    return {
        p.name: shapes.get(p.name) or tuple(dims[axis] for axis in p.shape or ()) for p in buffers
    }


def _oracle(op: Op, args: dict[str, Any]) -> Arrays:
    """What the reference writes in float64, from inputs rounded to what the device reads."""
    wide = dict(args)
    for param in op.params:
        if param.shape is not None and param.name in args:
            rounded = np.asarray(args[param.name]).astype(DTYPES[param.dtype])
            wide[param.name] = rounded.astype(np.float64) if rounded.dtype.kind == "f" else rounded
    result = getattr(import_module(f"ptx.{op.name}.ref"), op.name)(**wide)
    outputs = [param.name for param in op.params if param.out and not param.scratch]
    return {name: wide[name] if name in args else result for name in outputs}
