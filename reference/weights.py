"""Owns how the oracle asks for weights: by text-only name, whole or by rows, always as float64.

Where they come from (arrays, a generator, a checkpoint) is behind one protocol, so that a model too
large for memory is read in blocks of rows by the same code.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reference.errors import OracleError

Array = npt.NDArray[Any]

BLOCK_BYTES = 64 << 20
RESIDENT_BYTES = 1 << 30


class Weights(Protocol):
    """A source of tensors by name; rows are along the first axis."""

    def names(self) -> list[str]:
        """All tensor names, in the source's order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; OracleError when there is none of that name."""

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop of a tensor, float64 [stop - start, ...]."""


class DictWeights:
    """Weights held as arrays; values are taken as they are."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """arrays: text-only name -> array of any float dtype."""
        self._arrays = {name: np.asarray(array, np.float64) for name, array in arrays.items()}

    def names(self) -> list[str]:
        """All tensor names, in the order given."""
        return list(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; OracleError when there is none of that name."""
        if name not in self._arrays:
            raise OracleError(f"no tensor {name!r} among {len(self._arrays)}")
        return self._arrays[name].shape

    def rows(self, name: str, start: int, stop: int) -> Array:
        """A view of rows start..stop, float64."""
        self.shape(name)
        return self._arrays[name][start:stop]


def tensor(weights: Weights, name: str) -> Array:
    """A whole tensor, float64."""
    return weights.rows(name, 0, weights.shape(name)[0])


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Row ranges of a tensor, each at most 64 MiB as float64 (one row at least)."""
    step = max(1, BLOCK_BYTES // (8 * math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def resident(weights: Weights, limit_bytes: int = RESIDENT_BYTES) -> Weights:
    """The same weights as float64 arrays when they fit the limit, else the source itself."""
    if sum(8 * math.prod(weights.shape(name)) for name in weights.names()) > limit_bytes:
        return weights
    return DictWeights({name: tensor(weights, name) for name in weights.names()})


def linear(x: Array, weights: Weights, name: str) -> Array:
    """x [..., K], tensor [N, K] -> x W^T [..., N], reading W by blocks of rows."""
    shape = weights.shape(name)
    y = np.empty((*x.shape[:-1], shape[0]))
    for start, stop in blocks(shape):
        y[..., start:stop] = x @ weights.rows(name, start, stop).T
    return y


def check(weights: Weights, expected: Mapping[str, tuple[int, ...]]) -> None:
    """OracleError names the first expected tensor that is missing or has another shape."""
    present = set(weights.names())
    for name, shape in expected.items():
        if name not in present:
            raise OracleError(f"tensor {name} is missing")
        if weights.shape(name) != shape:
            raise OracleError(f"tensor {name} is {weights.shape(name)}, want {shape}")
