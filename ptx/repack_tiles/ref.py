"""Reference of `repack_tiles`. The contract is in `op.py`."""

from ptx.numerics import Array


def repack_tiles(x: Array, y: Array) -> None:
    """x u8 [N, B] into tile order, y u8 [I, J, P, Q]."""
    n_down, n_across, n_rows, n_bytes = y.shape
    y[...] = x.reshape(n_down, n_rows, n_across, n_bytes).transpose(0, 2, 1, 3)
