"""Reference of `encode_bf16`. The contract is in `op.py`."""

from ptx.numerics import Array, round_to_bf16


def encode_bf16(x: Array, y: Array | None = None) -> Array:
    """x [T, K] -> y bf16 bits [T, K]."""
    bits = round_to_bf16(x)
    if y is None:
        return bits
    y[...] = bits
    return y
