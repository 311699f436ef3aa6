"""Reference of `copy_rows`. The contract is in `op.py`."""

from ptx.numerics import Array


def copy_rows(source: Array, target: Array, from_rows: Array, to_rows: Array) -> None:
    """Rows of source [S, W] into rows of target [D, W], as the pairs i32 [N] say."""
    copied = from_rows >= 0
    target[to_rows[copied]] = source[from_rows[copied]]
