"""causal_conv_silu: y[t,c] = silu(sum_i w[c,i] column[t-W+1+i,c]), i = 0 .. W-1

where silu(x) = x / (1 + exp(-x)) and the columns of sequence s are the W-1 raw ones, oldest first,
of state[state_in[s]], then its rows of u: starts[s] .. starts[s+1]-1. Afterwards
state[state_out[s]] is the last W-1 of these columns, old ones among them when the rows are fewer.

shapes    u, y f32 [T, C]; w f32 [C, W]; starts i32 [S+1]; state_in, state_out i32 [S];
          state f32 [P, W-1, C]
domain    starts rises strictly from 0 to T; slots in 0 .. P-1; no state_out[s] is the state_in or
          state_out of another sequence (it may be its own state_in); W >= 2; T, C, P >= 1
effects   writes all of y, and the slots of state named by state_out, no others; no overlap
rounding  float32 arithmetic; the order of the sum is free and the same for every row; state
          holds bits of u
"""

from ptx.op import Kernel, Launch, Op, Param, buf

# The kernel for many rows: rows of a block, and how many of them are under way at once, which are
# not fewer than the columns carried.
N_ROWS, AT_ONCE = 32, 8

OP = Op(
    name="causal_conv_silu",
    params=(
        buf("u", "f32", "T C"),
        buf("w", "f32", "C W"),
        buf("starts", "i32", "S+1"),
        buf("state_in", "i32", "S"),
        buf("state_out", "i32", "S"),
        buf("state", "f32", "P W-1 C", out=True, partial=True),
        buf("y", "f32", "T C", out=True),
        Param("C", "u32"),
        Param("W", "u32"),
        Param("S", "u32"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        Kernel(
            "sm_80",
            lambda dims: Launch(
                grid=(-(-dims["C"] // 128), -(-dims["T"] // N_ROWS), dims["S"]), block=128
            ),
            # One row for each sequence, a step of decoding, is what portable.ptx does as fast.
            fits=lambda dims: dims["T"] >= 2 * dims["S"] and dims["W"] <= AT_ONCE + 1,
            constants=lambda dims: {"n_taps": dims["W"], "n_rows": N_ROWS, "at_once": AT_ONCE},
        ),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(-(-dims["C"] // 128), dims["S"]), block=128),
            constants=lambda dims: {"n_taps": dims["W"]},
        ),
    ),
    requires={
        "one more cell in starts than sequences": lambda dims: dims["S+1"] == dims["S"] + 1,
        "one column fewer in state than taps in w": lambda dims: dims["W-1"] == dims["W"] - 1,
    },
    examples=(
        {"T": 1, "C": 10240, "W": 4, "W-1": 3, "S": 1, "S+1": 2, "P": 2},
        {"T": 2048, "C": 10240, "W": 4, "W-1": 3, "S": 1, "S+1": 2, "P": 2},
    ),
)
