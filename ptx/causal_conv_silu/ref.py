"""Reference of `causal_conv_silu`, in the dtype of `u`. The contract is in `op.py`.

Every cell of y sees the same W products in the same order, however the rows are cut into calls.
"""

import numpy as np

from ptx.numerics import Array


def causal_conv_silu(
    u: Array,
    w: Array,
    starts: Array,
    state_in: Array,
    state_out: Array,
    state: Array,
    y: Array | None = None,
) -> Array:
    """u [T, C], w [C, W], state [P, W-1, C] updated in place -> y [T, C]."""
    if y is None:
        y = np.empty_like(u)
    taps = np.ascontiguousarray(w.T)
    borders = starts.tolist()
    for seq, (source, target) in enumerate(zip(state_in.tolist(), state_out.tolist(), strict=True)):
        rows = slice(borders[seq], borders[seq + 1])
        columns = np.concatenate((state[source], u[rows]))
        _convolve(columns, taps, y[rows])
        state[target] = columns[len(columns) - len(taps) + 1 :]
    # exp overflows to infinity for very negative sums, and y / infinity is the right 0.
    with np.errstate(over="ignore"):
        y /= 1 + np.exp(-y)
    return y


def _convolve(columns: Array, taps: Array, y: Array) -> None:
    """columns [n+W-1, C], taps [W, C] -> y [n, C]."""
    np.multiply(columns[: len(y)], taps[0], out=y)
    for age, tap in enumerate(taps[1:], 1):
        y += columns[age : age + len(y)] * tap
