"""Reference of `gated_delta_step`: the four that it is made of. The contract is in `op.py`."""

import numpy as np

from ptx.causal_conv_silu.ref import causal_conv_silu
from ptx.delta_rule.ref import delta_rule
from ptx.gated_rmsnorm.ref import gated_rmsnorm
from ptx.gdn_gates.ref import gdn_gates
from ptx.numerics import Array, round_to_bf16


def gated_delta_step(
    u: Array,
    z: Array,
    a: Array,
    b: Array,
    conv_w: Array,
    a_log: Array,
    dt_bias: Array,
    norm_w: Array,
    starts: Array,
    state_in: Array,
    state_out: Array,
    tickets: Array,
    conv_state: Array,
    state: Array,
    eps: float,
    y: Array | None = None,
) -> Array:
    """u [T, C], z [T, Nv, Dv], a, b [T, Nv]; both states are updated in place -> y [T, Nv, Dv].

    Returns bf16 bits when `y` is given, else the values before they are rounded. tickets stay 0.
    """
    qkv = causal_conv_silu(u, conv_w, starts, state_in, state_out, conv_state)
    g, beta = np.empty_like(a), np.empty_like(b)
    gdn_gates(a, b, a_log, dt_bias, g, beta)
    o = delta_rule(qkv, g, beta, starts, state_in, state_out, state)
    exact = gated_rmsnorm(o, z, norm_w, eps)
    if y is None:
        return exact
    y[...] = round_to_bf16(exact)
    return y
