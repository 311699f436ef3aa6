"""Protects `fill_uniform`: the words, two roundings and no fma, parts, 64-bit indices."""

import numpy as np
import pytest

from ptx.fill_uniform.op import OP
from ptx.splitmix64 import words

MASK = 2**64 - 1
# Below, at and past a block, and past two.
LENGTHS = [1, 63, 256, 257, 700]
# Halves that carry into the other, wrap at 2^64, and fill both.
SEEDS = [0, 1, 2**32 - 1, 2**63 + 5, MASK]
STARTS = [0, 2**32 - 3, 2**63 - 2, MASK - 2]


def _word(seed, index):
    """By the contract, in integers that do not wrap by themselves."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _inputs(n, seed=0, start=0, low=0, high=1):
    return {
        "y": np.zeros(n),
        "seed_lo": seed & 0xFFFFFFFF,
        "seed_hi": seed >> 32,
        "start_lo": start & 0xFFFFFFFF,
        "start_hi": start >> 32,
        "low": low,
        "high": high,
    }


def test_words_are_the_published_ones():
    want = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert words(0, 0, 3).tolist() == want


@pytest.mark.parametrize("seed", SEEDS, ids=hex)
@pytest.mark.parametrize("start", STARTS, ids=hex)
def test_words_are_those_of_the_contract(seed, start):
    assert words(seed, start, 9).tolist() == [_word(seed, start + i) for i in range(9)]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.1, 0.1), (3, -2.7), (-1e38, 2e38), (5, 5)])
def test_cells_are_those_of_the_contract(bench, low, high):
    y = bench.run(OP, **_inputs(65, 7, 3, low, high))["y"]
    first, last = np.float32(low), np.float32(high)
    for i, cell in enumerate(y):
        u = np.float32((_word(7, 3 + i) >> 40) / 2**24)
        assert cell == (last - first) * u + first


def test_both_ends_of_the_range(bench):
    y = bench.run(OP, **_inputs(100_000, 11))["y"]
    assert 0 <= y.min() < 1e-4
    assert 1 - 1e-4 < y.max() < 1
    assert abs(y.mean() - 0.5) < 0.005
    assert len(np.unique(y * 2**24 % 256)) == 256


@pytest.mark.parametrize("n", LENGTHS)
def test_kernels(kernels, n):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(n, 2**40 + n, n, -0.1, 0.3))


@pytest.mark.parametrize("seed", SEEDS, ids=hex)
def test_every_bit_of_seed_and_start_in_kernels(kernels, seed):
    for bench in kernels(OP):
        for start in STARTS:
            bench.check(OP, **_inputs(9, seed, start))


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.7), (3, -2.7), (-1e38, 2e38)])
def test_two_roundings_and_no_fma_in_kernels(kernels, low, high):
    inputs = _inputs(600, 5, 0, low, high)
    u = (words(5, 0, 600) >> np.uint64(40)) / 2**24
    first, last = np.float32(low), np.float32(high)
    fused = (np.float64(last - first) * u + first).astype(np.float32)
    for bench in kernels(OP):
        bench.check(OP, **inputs)
        # Else these inputs could not tell the roundings apart.
        assert (bench.run(OP, **inputs)["y"] != fused).any()


def test_parts_have_the_bits_of_the_whole(kernels):
    start = 2**32 - 100
    for bench in kernels(OP):
        whole = bench.run(OP, **_inputs(300, 9, start, -1, 1))["y"]
        for first, end in [(0, 1), (1, 100), (100, 101), (101, 300)]:
            part = _inputs(end - first, 9, start + first, -1, 1)
            got = bench.run(OP, n_guard=first % 4 + 1, **part)["y"]
            assert got.tobytes() == whole[first:end].tobytes()
