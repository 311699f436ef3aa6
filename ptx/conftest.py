"""Owns how an op's tests run it: poisoned buffers, guard rows, untouched inputs, row invariance.

It must not know any op. What each op must compute is in its `op.py`, the judge is its `ref.py`
in float64.
"""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from ptx.devices.host import HostDevice
from ptx.numerics import DTYPES, Array, mismatch
from ptx.op import Op, Param, fold

Arrays = dict[str, Array]


class OpBench:
    """Runs ops on a poisoning host device; arguments are numpy arrays and scalars by name."""

    def __init__(self) -> None:
        self.device = HostDevice(poison=True)

    def run(self, op: Op, n_guard: int = 1, **args: Any) -> Arrays:
        """Launch `op` and return what it wrote; outputs that are not given start as poison.

        Each buffer lies between `n_guard` poisoned rows, which no launch may touch; inputs keep
        their bits. An odd `n_guard` with odd rows also moves buffers off their alignment.
        """
        buffers = tuple(param for param in op.params if param.shape is not None)
        shapes = _shapes(buffers, args)
        whole = {
            p.name: self.device.allocate(
                (shapes[p.name][0] + 2 * n_guard, *shapes[p.name][1:]), p.dtype, p.name
            )
            for p in buffers
        }
        views = {name: array[n_guard:-n_guard] for name, array in whole.items()}
        for name, view in views.items():
            if name in args:
                self.device.upload(view, np.asarray(args[name]))
        before = {name: self.device.download(array) for name, array in whole.items()}
        self.device.launch(op, **{**args, **views})
        written = {}
        for param in buffers:
            after, start = self.device.download(whole[param.name]), before[param.name]
            if param.out:
                written[param.name] = after[n_guard:-n_guard].copy()
                after[n_guard:-n_guard] = start[n_guard:-n_guard]
            assert after.tobytes() == start.tobytes(), f"{op.name} wrote outside: {param.name}"
        return written

    def check(self, op: Op, **args: Any) -> None:
        """Compare a launch with the reference in float64 on the same rounded inputs."""
        got = self.run(op, **args)
        for name, want in _oracle(op, args).items():
            report = mismatch(got[name], want, op.tolerance)
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


@pytest.fixture
def bench() -> OpBench:
    """A bench with a device of its own."""
    return OpBench()


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
    for param in buffers:
        shapes.setdefault(param.name, tuple(dims[axis] for axis in param.shape or ()))
    return shapes


def _oracle(op: Op, args: dict[str, Any]) -> Arrays:
    """What the reference writes in float64, from inputs rounded to what the device reads."""
    wide = dict(args)
    for param in op.params:
        if param.shape is not None and param.name in args:
            rounded = np.asarray(args[param.name]).astype(DTYPES[param.dtype])
            wide[param.name] = rounded.astype(np.float64) if rounded.dtype.kind == "f" else rounded
    result = getattr(import_module(f"ptx.{op.name}.ref"), op.name)(**wide)
    outputs = [param.name for param in op.params if param.out]
    return {name: wide[name] if name in args else result for name in outputs}
