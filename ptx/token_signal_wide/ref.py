"""Reference of `token_signal_wide`, in the dtype of `logits`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.token_signal.ref import token_signal


def token_signal_wide(logits: Array, ids: Array, values: Array, work: Array) -> None:
    """logits [T, V] -> ids i32 [T, 2], values [T, 4]; work [T, W] zeros, left alone."""
    token_signal(logits, ids, values)
