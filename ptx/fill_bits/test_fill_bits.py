"""Protects `fill_bits`: the generator's bytes in order, odd lengths, parts, 64-bit indices."""

import struct

import numpy as np
import pytest

from ptx.fill_bits.op import OP
from ptx.splitmix64 import words

MASK = 2**64 - 1
# Parts of a word, whole words, one byte past; below, at and past a block, and past two.
LENGTHS = [1, 7, 8, 9, 255, 256, 257, 515]
# Halves that carry into the other, wrap at 2^64, and fill both.
SEEDS = [0, 1, 2**32 - 1, 2**63 + 5, MASK]
STARTS = [0, 2**32 - 2, 2**63 - 2, MASK - 1]


def _inputs(n, seed=0, start=0):
    return {
        "y": np.zeros(n, np.uint8),
        "seed_lo": seed & 0xFFFFFFFF,
        "seed_hi": seed >> 32,
        "start_lo": start & 0xFFFFFFFF,
        "start_hi": start >> 32,
    }


def test_first_bytes_of_seed_zero(bench):
    # The first words of splitmix64 are published: E220A8397B1DCDAF, 6E789E6AA1B965F4.
    y = bench.run(OP, **_inputs(11))["y"]
    assert y.tobytes().hex() == "afcd1d7b39a820e2" + "f465b9"


def test_first_bytes_of_seed_zero_in_kernels(kernels):
    for bench in kernels(OP):
        test_first_bytes_of_seed_zero(bench)


@pytest.mark.parametrize("n", LENGTHS)
def test_bytes_are_those_of_the_words(bench, n):
    y = bench.run(OP, **_inputs(n, 2**40 + n, n))["y"]
    want = b"".join(struct.pack("<Q", int(word)) for word in words(2**40 + n, n, n // 8 + 1))
    assert y.tobytes() == want[:n]


@pytest.mark.parametrize("n", LENGTHS)
def test_kernels(kernels, n):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(n, 2**40 + n, n))


@pytest.mark.parametrize("seed", SEEDS, ids=hex)
def test_every_bit_of_seed_and_start_in_kernels(kernels, seed):
    for bench in kernels(OP):
        for start in STARTS:
            bench.check(OP, **_inputs(29, seed, start))


def test_parts_of_whole_words_have_the_bits_of_the_whole(kernels):
    start = 2**32 - 5
    for bench in kernels(OP):
        whole = bench.run(OP, **_inputs(101, 9, start))["y"]
        for first, end in [(0, 8), (8, 40), (40, 96), (96, 101)]:
            part = _inputs(end - first, 9, start + first // 8)
            got = bench.run(OP, n_guard=first // 8 + 1, **part)["y"]
            assert got.tobytes() == whole[first:end].tobytes()
