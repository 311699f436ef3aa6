"""Owns what a case of the benchmark is: an op at some dims, its work, and the bar it is held to.

It must not know which cases there are, nor how anything is timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from ptx.bench import Maker
from ptx.op import Dims, Kernel, Op, OpError, listed

# Bytes or operations as a sum: axes -> how many for each cell of their product; {"N K": 2}: 2 N K.
Terms = Mapping[str, float]
Kind = Literal["bytes", "flops"]
# share  of the ceiling: reads of the largest run for bytes, a bf16 product for flops
# us     microseconds at most
# times  as long as the case `of` at most
# peer   of the peer's rate
BarKind = Literal["share", "us", "times", "peer"]


@dataclass(frozen=True)
class Bar:
    """What a case should reach; `of` is the label of the case that `times` refers to."""

    kind: BarKind
    value: float
    of: str = ""

    def __str__(self) -> str:
        words = {"share": "{:.0%} of the ceiling", "us": "{:g} us", "times": "{:g} x ",
                 "peer": "{:.0%} of the peer"}
        return words[self.kind].format(self.value) + self.of


@dataclass(frozen=True)
class Case:
    """One line of the benchmark.

    `dims` may have more axes than the op, for contracts name them as they like. `bytes_each` and
    `flops_each` say how much a launch moves and computes: whatever it reads once, whatever it
    writes once. `kind` is which of the two bounds it. `values` go before those of `ptx.bench`.
    `peer` is a name in `peers.WAYS`.
    """

    label: str
    family: str
    op: str
    dims: Dims
    kind: Kind
    bytes_each: Terms
    flops_each: Terms
    bar: Bar | None = None
    peer: str = ""
    values: Mapping[str, Maker] = field(default_factory=dict)
    quick: bool = True

    @property
    def n_bytes(self) -> int:
        """Bytes that a launch cannot do without."""
        return total(self.bytes_each, self.dims)

    @property
    def n_flops(self) -> int:
        """Its additions and multiplications."""
        return total(self.flops_each, self.dims)

    @property
    def amount(self) -> int:
        """Bytes or operations, whichever bounds it."""
        return self.n_bytes if self.kind == "bytes" else self.n_flops


def total(terms: Terms, dims: Dims) -> int:
    """The sum that terms stand for; KeyError for an axis that dims lack."""
    return round(
        sum(each * prod(dims[axis] for axis in axes.split()) for axes, each in terms.items())
    )


def dims_of(case: Case, op: Op) -> dict[str, int]:
    """Lengths of the op's axes for a case; OpError names those that nobody knows.

    An axis that is a number has that length. One that the case does not have, such as how many
    parts an op cuts its work into, is taken from the example that is most like the case.
    """
    axes = dict.fromkeys(axis for param in op.params for axis in param.shape or ())
    known = {axis: int(axis) for axis in axes if axis.isdigit()}
    examples = sorted(op.examples, key=lambda dims: len(dims.items() & case.dims.items()))
    found = {**(examples[-1] if examples else {}), **known, **case.dims}
    missing = [axis for axis in axes if axis not in found]
    if missing:
        raise OpError(f"{op.name}: {case.label} has no axis {', '.join(missing)}")
    return {axis: found[axis] for axis in axes}


def kernels_of(op: Op, runs: tuple[str, ...], dims: Dims) -> list[Kernel]:
    """The op's kernels for a target that `runs` these and for dims, best first; OpError if none."""
    for sentence, holds in op.requires.items():
        if not holds(dims):
            raise OpError(f"{op.name}: needs {sentence}, found {listed(dims)}")
    fitting = [k for k in op.best_first(dims) if k.target in runs and k.fits(dims)]
    if not fitting:
        raise OpError(f"{op.name}: no kernel fits {listed(dims)}")
    return fitting
