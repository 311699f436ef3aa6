"""Owns GatedDeltaNet's carried parts: the causal convolution and both forms of the delta rule.

The recurrent form defines the layer; the chunked form is the same value by other sums. Heads are
value heads here: the caller repeats query and key heads. States are [Nv, Dv, Dk].
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.rounding import EXACT, Rounding

Array = npt.NDArray[Any]


def causal_conv(
    u: Array, conv: Array, w: Array
) -> tuple[Array, Array]:
    """u [T, C] raw inputs, conv [W-1, C] the raw columns before them, w [C, W], last tap newest.

    -> sums before activation [T, C], and the last W-1 columns of (conv | u) to carry on.
    """
    n_tokens, width = u.shape[0], w.shape[1]
    columns = np.concatenate([conv, u])
    sums = np.zeros_like(u)
    for tap in range(width):
        sums += columns[tap : tap + n_tokens] * w[:, tap]
    return sums, columns[n_tokens:].copy()


def recurrent(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, rounding: Rounding = EXACT
) -> tuple[Array, Array]:
    """q, k [T, Nv, Dk], v [T, Nv, Dv], g, beta [T, Nv], state [Nv, Dv, Dk].

    -> reads [T, Nv, Dv] and the state after the last token; `state` itself is left alone.
    """
    out = np.empty_like(v)
    decay = np.exp(g)
    for t in range(v.shape[0]):
        state = decay[t, :, None, None] * state
        # The error is against the decayed state, and the read comes after the write.
        error = v[t] - np.einsum("hvk,hk->hv", state, k[t])
        state = state + (beta[t, :, None] * error)[:, :, None] * k[t][:, None, :]
        state = rounding("delta_state", state)
        out[t] = np.einsum("hvk,hk->hv", state, q[t])
    return out, state


def chunked(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, chunk: int,
    rounding: Rounding = EXACT,
) -> tuple[Array, Array]:
    """As `recurrent`, by chunks of at most `chunk` tokens; equal to it apart from rounding."""
    out = np.empty_like(v)
    for start in range(0, v.shape[0], chunk):
        rows = slice(start, min(start + chunk, v.shape[0]))
        out[rows], state = _one_chunk(q[rows], k[rows], v[rows], g[rows], beta[rows], state)
        state = rounding("delta_state", state)
    return out, state


def _one_chunk(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    # Head-major, so that every product below is a batch of small matrix products.
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))  # [Nv, n, D]
    total = np.cumsum(g, axis=0).T  # [Nv, n]
    weight = beta.T[:, :, None]
    n = total.shape[1]
    later = np.triu(np.ones((n, n), dtype=bool), 1)
    # Masked before exponentiating: above the diagonal the difference is positive and can overflow.
    pair = np.exp(np.where(later, -np.inf, total[:, :, None] - total[:, None, :]))
    keys = k @ k.transpose(0, 2, 1)
    system = np.eye(n) + np.tril(weight * keys * pair, -1)
    grown = np.exp(total)[:, :, None]
    right = np.concatenate([weight * v, weight * grown * k], axis=2)
    solved = _forward_substitution(system, right)
    u, y = solved[:, :, : v.shape[2]], solved[:, :, v.shape[2] :]
    writes = u - y @ state.transpose(0, 2, 1)
    out = grown * (q @ state.transpose(0, 2, 1)) + (q @ k.transpose(0, 2, 1) * pair) @ writes
    left = np.exp(total[:, -1:] - total)[:, :, None]
    state = grown[:, -1:, :] * state + writes.transpose(0, 2, 1) @ (left * k)
    return out.transpose(1, 0, 2), state


def _forward_substitution(system: Array, right: Array) -> Array:
    """Unit lower triangular `system` [Nv, n, n], right [Nv, n, m] -> solution [Nv, n, m]."""
    x = right.copy()
    for row in range(1, right.shape[1]):
        x[:, row] -= np.einsum("hj,hjm->hm", system[:, row, :row], x[:, :row])
    return x
