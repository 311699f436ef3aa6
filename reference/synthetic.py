"""Owns weights that come from counters instead of files, and writing them as a checkpoint.

Every value is a function of tensor name, seed and flat index, so any block of rows can be made
alone: a checkpoint of full width is written in bounded memory. The generator uses integers and
exactly rounded float operations only, hence the same bits everywhere.
"""

import argparse
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.checkpoint_writer import write_checkpoint
from reference.config import MINI, TINY, Config
from reference.errors import OracleError

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]

FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1
PIECE = 1 << 15
CONFIGS = {"tiny": TINY, "mini": MINI}

__all__ = ["CountedWeights", "deterministic", "lively", "write_checkpoint"]


def fnv1a(name: str) -> int:
    """FNV-1a of the name's UTF-8 bytes, 64 bits."""
    value = FNV_OFFSET
    for byte in name.encode():
        value = ((value ^ byte) * FNV_PRIME) & MASK
    return value


def uniform(stream: int, start: int, count: int) -> Array:
    """Values start..start+count of a 64-bit stream: float64 [count] in [-1, 1)."""
    found = np.empty(count)
    # In pieces that stay in cache: fresh pages for each temporary cost more than the arithmetic.
    for at in range(0, count, PIECE):
        first, n = start + at, min(PIECE, count - at)
        z: Words = np.arange(first, first + n, dtype=np.uint64)
        z *= np.uint64(GOLDEN)
        z += np.uint64(stream)
        for shift, factor in ((30, MIX_1), (27, MIX_2), (31, 1)):
            z ^= z >> np.uint64(shift)
            z *= np.uint64(factor)
        found[at : at + n] = 2.0 * ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1.0
    return found


class CountedWeights:
    """A source of weights (`reference.weights.Weights`) for a configuration.

    seed None: the deterministic weights with published golden values. Otherwise random weights that
    keep the network lively; norms are then spread like N(0, 0.2^2) instead of evenly.
    """

    def __init__(self, config: Config, seed: int | None, mtp: bool = True) -> None:
        """seed: 0 or more, or None; mtp: whether the MTP tensors exist."""
        if seed is not None and seed < 0:
            raise OracleError(f"seed {seed} is negative")
        self._shapes, self._seed = config.tensors(mtp), seed

    def names(self) -> list[str]:
        """All tensor names, in checkpoint order."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; OracleError when there is none of that name."""
        if name not in self._shapes:
            raise OracleError(f"no tensor {name!r} among {len(self._shapes)}")
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop of a tensor, float64."""
        shape = self.shape(name)
        width = int(np.prod(shape[1:], dtype=np.int64))
        first, count = start * width, (stop - start) * width
        return self._values(name, shape, first, count).reshape(stop - start, *shape[1:])

    def _values(self, name: str, shape: tuple[int, ...], start: int, count: int) -> Array:
        if name.endswith("A_log"):
            return -1.5 + 2.5 * self._uniform(name, start, count)
        if name.endswith("dt_bias"):
            return 0.5 + self._uniform(name, start, count)
        if name.endswith("linear_attn.norm.weight"):
            return 1.0 + 0.2 * self._spread(name, start, count)
        if "norm" in name:
            return 0.2 * self._spread(name, start, count)
        if name.endswith("embed_tokens.weight"):
            return self._uniform(name, start, count)
        values: Array = self._uniform(name, start, count) * np.sqrt(3.0 / shape[-1])
        return values

    def _uniform(self, name: str, start: int, count: int, part: str = "") -> Array:
        key = name if self._seed is None else f"{self._seed}{part}:{name}"
        return uniform(fnv1a(key), start, count)

    def _spread(self, name: str, start: int, count: int) -> Array:
        if self._seed is None:
            return self._uniform(name, start, count)
        # Three uniforms in [-1, 1) add up to variance 1: near enough to a normal, and exact.
        first, second, third = (self._uniform(name, start, count, part) for part in "abc")
        total: Array = first + second + third
        return total


def deterministic(config: Config, mtp: bool = True) -> CountedWeights:
    """The deterministic weights, whose tiny configuration has published golden values."""
    return CountedWeights(config, None, mtp)


def lively(config: Config, seed: int, mtp: bool = True) -> CountedWeights:
    """Random weights with variance 1/fan-in and a spread of fast and slow decays."""
    return CountedWeights(config, seed, mtp)


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write synthetic weights as a checkpoint folder.")
    parser.add_argument("out", help="folder to write")
    parser.add_argument("--config", choices=sorted(CONFIGS), default="tiny")
    parser.add_argument("--seed", type=int, help="random weights instead of the deterministic")
    parser.add_argument("--dtype", choices=("BF16", "F16", "F32"), default="BF16")
    parser.add_argument("--naming", choices=("multimodal", "text"), default="multimodal")
    parser.add_argument("--vision", action="store_true", help="add a dummy vision tower")
    parser.add_argument("--no-mtp", action="store_true", help="leave the MTP head out")
    parser.add_argument("--shard-bytes", type=int, help="start a new shard past that many bytes")
    given = parser.parse_args(arguments)
    config = CONFIGS[given.config]
    try:
        write_checkpoint(
            given.out, CountedWeights(config, given.seed), config, dtype=given.dtype,
            naming=given.naming, vision=given.vision, mtp=not given.no_mtp,
            shard_bytes=given.shard_bytes,
        )
    except (OracleError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
