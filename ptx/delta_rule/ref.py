"""Reference of `delta_rule`, in the dtype of `state`. The contract is in `op.py`.

Tokens run one after the other in shapes that only the model sets, so nothing else of a call can
reach a token's bits.
"""

import math

import numpy as np

from ptx.numerics import Array

L2_EPS = 1e-6


def delta_rule(
    qkv: Array,
    g: Array,
    beta: Array,
    starts: Array,
    state_in: Array,
    state_out: Array,
    state: Array,
    o: Array | None = None,
) -> Array:
    """qkv [T, C], g, beta [T, Nv], state [P, Nv, Dv, Dk] updated in place -> o [T, Nv, Dv]."""
    q, k, v = heads(qkv, state)
    if o is None:
        o = np.empty_like(v)
    decay = np.exp(g)[:, :, None, None]
    rate = beta[:, :, None]
    write = np.empty_like(state[0])
    borders = starts.tolist()
    for seq, (source, target) in enumerate(zip(state_in.tolist(), state_out.tolist(), strict=True)):
        s = state[target]
        if source != target:
            s[...] = state[source]
        for t in range(borders[seq], borders[seq + 1]):
            s *= decay[t]
            error = v[t] - np.matmul(s, k[t, :, :, None])[:, :, 0]
            error *= rate[t]
            s += np.multiply(error[:, :, None], k[t, :, None, :], out=write)
            np.matmul(s, q[t, :, :, None], out=o[t, :, :, None])
    return o


def heads(qkv: Array, state: Array) -> tuple[Array, Array, Array]:
    """The normalised q and k [T, Nv, Dk], each head repeated for its value heads, v [T, Nv, Dv]."""
    n_tokens, n_channels = qkv.shape
    _, n_value_heads, d_value, d_key = state.shape
    n_key_heads = (n_channels - n_value_heads * d_value) // (2 * d_key)
    d_block = n_key_heads * d_key
    q, k = (
        qkv[:, first : first + d_block].reshape(n_tokens, n_key_heads, d_key)
        for first in (0, d_block)
    )
    v = qkv[:, 2 * d_block :].reshape(n_tokens, n_value_heads, d_value)
    n_repeats = n_value_heads // n_key_heads
    q = _l2(q) / q.dtype.type(math.sqrt(d_key))
    return q.repeat(n_repeats, axis=1), _l2(k).repeat(n_repeats, axis=1), v


def _l2(x: Array) -> Array:
    """x [T, Nk, Dk] -> a new array of rows with length 1, or less where they are tiny."""
    normed: Array = x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(L2_EPS))
    return normed
