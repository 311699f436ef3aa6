"""Reference of `unpack_tiles`. The contract is in `op.py`."""

from ptx.numerics import Array


def unpack_tiles(x: Array, y: Array) -> None:
    """x u8 [I, J, P, Q] in tile order into rows, y u8 [N, B]."""
    y[...] = x.transpose(0, 2, 1, 3).reshape(y.shape)
