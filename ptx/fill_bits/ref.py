"""Reference of `fill_bits`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.splitmix64 import joined, words


def fill_bits(y: Array, seed_lo: int, seed_hi: int, start_lo: int, start_hi: int) -> None:
    """Random bytes into y u8 [N]."""
    random = words(joined(seed_lo, seed_hi), joined(start_lo, start_hi), -(-len(y) // 8))
    y[...] = random.astype("<u8").view("u1")[: len(y)]
