"""Protects `encode_bf16`: every upper half of a float32, its middles, infinities, NaN."""

import numpy as np
import pytest

from ptx.encode_bf16.op import OP
from ptx.numerics import widen_bf16

# Of numpy, about signalling NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
# float32 bits and the bf16 bits they become.
BY_HAND = [
    (0x3F800000, 0x3F80), (0x3FC00000, 0x3FC0), (0xC0000000, 0xC000),
    # Zeros keep their sign.
    (0x00000000, 0x0000), (0x80000000, 0x8000),
    # Middles go to the even neighbour, whatever is beside them to the nearer one.
    (0x3F808000, 0x3F80), (0x3F807FFF, 0x3F80), (0x3F808001, 0x3F81),
    (0x3F818000, 0x3F82), (0x3F817FFF, 0x3F81), (0xBF818000, 0xBF82),
    # A carry into the exponent.
    (0x3FFF8000, 0x4000), (0xBFFFFFFF, 0xC000),
    # Subnormals: to zero, to the smallest, up to the smallest normal one.
    (0x00000001, 0x0000), (0x80008000, 0x8000), (0x80008001, 0x8001), (0x00018000, 0x0002),
    (0x007F8000, 0x0080),
    # The largest, and what is past it.
    (0x7F7F0000, 0x7F7F), (0x7F7F7FFF, 0x7F7F), (0x7F7F8000, 0x7F80), (0xFF7FFFFF, 0xFF80),
    (0x7F800000, 0x7F80), (0xFF800000, 0xFF80),
    # Every NaN, quiet or signalling: also those whose bits a carry would make infinite or zero.
    (0x7FC00000, 0x7FFF), (0xFFC00000, 0x7FFF), (0x7F800001, 0x7FFF), (0xFF800001, 0x7FFF),
    (0x7FFFFFFF, 0x7FFF), (0xFFFFFFFF, 0x7FFF), (0xFFFF8000, 0x7FFF), (0x7FA12345, 0x7FFF),
]  # fmt: skip
LOWER_HALVES = np.array([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)


def _floats(upper):
    """f32 [n, 6]: the upper halves with a lower half below, on and above the middle, and exact."""
    upper = np.asarray(upper, np.uint32)[:, None]
    return (upper << 16 | LOWER_HALVES).view(np.float32)


def _random(n_rows, width):
    rng = np.random.default_rng(n_rows + width)
    return rng.integers(0, 2**32, (n_rows, width), np.uint32).view(np.float32)


def test_by_hand(bench):
    x = np.array([[bits for bits, _ in BY_HAND]], np.uint32).view(np.float32)
    y = bench.run(OP, x=x)["y"]
    assert [hex(bits) for bits in y[0]] == [hex(bits) for _, bits in BY_HAND]


def test_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_by_hand(bench)


def test_no_bf16_is_nearer(bench):
    """Every finite upper half: the result is a neighbour, no farther than the other one."""
    upper = [u for u in range(0x10000) if u & 0x7FFF < 0x7F7F]
    x = _floats(upper)
    y = bench.run(OP, x=x)["y"]
    below = widen_bf16(np.array(upper, np.uint16))[:, None].astype(np.float64)
    above = widen_bf16(np.array(upper, np.uint16) + np.uint16(1))[:, None].astype(np.float64)
    wide = x.astype(np.float64)
    went_up = y != np.array(upper)[:, None]
    assert (y == np.array(upper)[:, None] + went_up).all()
    down, up = np.abs(wide - below), np.abs(above - wide)
    assert (np.where(went_up, up, down) == np.minimum(down, up)).all()
    assert not (y[down == up] & 1).any()


def test_what_is_a_bf16_already_stays(bench):
    upper = np.array([u for u in range(0x10000) if u & 0x7FFF <= 0x7F80], np.uint16)
    y = bench.run(OP, x=widen_bf16(upper)[None])["y"]
    assert y[0].tobytes() == upper.tobytes()


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x",), x=_random(19, 65))


@pytest.mark.parametrize(("n_rows", "width"), [(1, 1), (3, 63), (2, 257), (1, 5120)])
def test_kernels(kernels, n_rows, width):
    for bench in kernels(OP):
        bench.check(OP, x=_random(n_rows, width))


def test_kernels_at_every_exponent(kernels):
    # Even and odd last bits, carries out of the fraction, both signs, infinity and NaN.
    upper = [u for u in range(0x10000) if u & 0x7F in (0, 1, 0x2A, 0x7E, 0x7F)]
    for bench in kernels(OP):
        bench.check(OP, x=_floats(upper))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x",), x=_random(4, 65))
