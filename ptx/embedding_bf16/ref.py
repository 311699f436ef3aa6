"""Reference of `embedding_bf16`. The contract is in `op.py`."""

from ptx.numerics import Array, widen_bf16


def embedding_bf16(ids: Array, w: Array, y: Array | None = None) -> Array:
    """ids i32 [T], w bf16 bits [V, D] -> y f32 [T, D]."""
    rows = widen_bf16(w[ids])
    if y is None:
        return rows
    y[...] = rows
    return y
