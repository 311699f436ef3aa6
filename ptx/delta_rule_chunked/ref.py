"""Reference of `delta_rule_chunked`, in the dtype of `state`. The contract is in `op.py`."""

import numpy as np

from ptx.delta_rule.ref import heads
from ptx.numerics import Array


def delta_rule_chunked(
    qkv: Array,
    g: Array,
    beta: Array,
    starts: Array,
    state_in: Array,
    state_out: Array,
    state: Array,
    chunk: int,
    o: Array | None = None,
) -> Array:
    """qkv [T, C], g, beta [T, Nv], state [P, Nv, Dv, Dk] updated in place -> o [T, Nv, Dv]."""
    q, k, v = heads(qkv, state)
    if o is None:
        o = np.empty_like(v)
    borders = starts.tolist()
    for seq, (source, target) in enumerate(zip(state_in.tolist(), state_out.tolist(), strict=True)):
        s = state[target]
        if source != target:
            s[...] = state[source]
        end = borders[seq + 1]
        for first in range(borders[seq], end, chunk):
            rows = slice(first, min(first + chunk, end))
            _run_chunk(s, *[x[rows].swapaxes(0, 1) for x in (q, k, v, g, beta, o)])
    return o


def _run_chunk(s: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, o: Array) -> None:
    """s [Nv, Dv, Dk], q, k [Nv, n, Dk], v, o [Nv, n, Dv], g, beta [Nv, n]; writes o and s."""
    d_value = v.shape[-1]
    since_start = np.exp(np.cumsum(g, axis=-1))[:, :, None]
    between = _decay_between(g)
    rate = beta[:, :, None]
    # Only what lies below the diagonal is read: row i needs rows 0 .. i-1.
    overlap = rate * np.matmul(k, k.swapaxes(1, 2)) * between
    wanted = np.concatenate((rate * v, rate * since_start * k), axis=-1)
    for row in range(1, wanted.shape[1]):
        wanted[:, row] -= np.matmul(overlap[:, row, None, :row], wanted[:, :row])[:, 0]
    s_transposed = s.swapaxes(1, 2)
    write = wanted[:, :, :d_value] - np.matmul(wanted[:, :, d_value:], s_transposed)
    o[...] = since_start * np.matmul(q, s_transposed)
    o += np.matmul(np.matmul(q, k.swapaxes(1, 2)) * between, write)
    s *= since_start[:, -1:]
    s += np.matmul(write.swapaxes(1, 2), between[:, -1, :, None] * k)


def _decay_between(g: Array) -> Array:
    """g [Nv, n] -> exp(g[j+1] + .. + g[i]) at [Nv, i, j] for j <= i, else 0.

    Summed over its own interval: a difference of two running sums loses all digits behind a very
    strong decay, and is NaN behind an infinite one.
    """
    n_rows = g.shape[-1]
    later = np.tril(np.ones((n_rows, n_rows), bool), -1)
    steps = np.where(later, g[:, :, None], g.dtype.type(0))
    return np.tril(np.exp(np.cumsum(steps, axis=1)))
