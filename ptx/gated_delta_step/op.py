"""gated_delta_step: a layer's recurrent step: convolution, gates, delta rule and gated norm in one

For the rows of each sequence in order, with the maths of the op that is named beside it:
    x = silu of the W taps conv_w over u and the columns before it       (causal_conv_silu)
    g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b)             (gdn_gates)
    o = S q after S = exp(g) S; S = S + (beta (v - S k)) k^T, qkv = x    (delta_rule)
    y = o / sqrt(mean(o^2) + eps) * norm_w * silu(z)                     (gated_rmsnorm)
Sequence s is the rows starts[s] .. starts[s+1]-1; it begins with slot state_in[s] of conv_state
and of state, and leaves its last columns and S in slot state_out[s] of both.

shapes    u f32 [T, C]; z f32, y bf16 [T, Nv, Dv]; a, b f32 [T, Nv]; conv_w f32 [C, W]; a_log,
          dt_bias f32 [Nv]; norm_w f32 [Dv]; starts i32 [S+1]; state_in, state_out i32 [S];
          tickets u32 [N]; conv_state f32 [P, W-1, C]; state f32 [P, Nv, Dv, Dk]
domain    C = 2 Nk Dk + Nv Dv, Nk divides Nv; all finite; eps > 0; W >= 2; N >= S Nk; starts rises
          strictly from 0 to T; slots in 0 .. P-1; no state_out[s] is the state_in or state_out of
          another sequence (it may be its own state_in); tickets are 0, and no other launch uses
          them meanwhile
effects   writes all of y, and the slots of conv_state and state named by state_out, no others;
          tickets count the blocks that have read their columns, and are 0 again; no overlap
rounding  float32 arithmetic, y rounded once; the order of sums is free and the same for every row,
          so that no split of a sequence into calls changes a bit; conv_state holds bits of u
"""

from collections.abc import Mapping

from ptx.delta_rule.op import key_heads_divide
from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

# The tuned kernels: one block for a value head of a sequence. Both widths of a head are HEAD.
HEAD = 128
# Threads of a block, and blocks that an SM shall hold; HEAD * HEAD / threads registers of a thread
# are its cells of S. One sequence is 48 blocks, each with an SM to itself. From MANY sequences on
# there are more blocks than SMs, and two to an SM load S while the other stores it.
ALONE, PAIRED, MANY = (512, 1), (256, 2), 4
# Lanes that share a row of S, each with 16-byte pieces of it: 4, 8 or 16.
LANES = 8
# Rows of a sequence that are convolved, stepped and normed together, 3 to 32: all old columns are
# under the first ones' taps.
CHUNK = 16
# How S is loaded and stored: it is used once in a token, and all layers' together exceed the cache.
LOAD, STORE = ".cs", ".cs"
# Whether a programmatic launch asks for S and the old columns before it waits. It only asks the
# cache for them: what comes too early or from a slot that changes is read anew after the wait.
PREFETCH = True
# How the ticket is ordered: "" spares its warp a fence, on a card's word that columns which are in
# registers have been read; PTX promises that of .acq_rel alone.
TICKET = ".acq_rel"


def n_key_heads(dims: Dims) -> int:
    """Nk."""
    return (dims["C"] - dims["Nv"] * dims["Dv"]) // (2 * dims["Dk"])


def is_tuned(dims: Dims) -> bool:
    """Heads of HEAD on both sides, and taps that fit into registers beside the rows of S."""
    return dims["Dk"] == dims["Dv"] == HEAD and dims["W"] <= 4


def _dims(dims: Dims) -> dict[str, Constant]:
    return {
        "n_channels": dims["C"], "n_heads": dims["Nv"], "n_key_heads": n_key_heads(dims),
        "n_taps": dims["W"],
    }


def _portable(dims: Dims) -> Mapping[str, Constant]:
    return {**_dims(dims), "d_key": dims["Dk"], "d_value": dims["Dv"]}


def _block(dims: Dims) -> tuple[int, int]:
    return PAIRED if dims["S"] >= MANY else ALONE


def _tuned(dims: Dims) -> Mapping[str, Constant]:
    threads, blocks_per_sm = _block(dims)
    return {
        **_dims(dims), "d": HEAD, "threads": threads, "blocks_per_sm": blocks_per_sm,
        "lanes": LANES, "chunk": CHUNK, "load": LOAD, "store": STORE, "prefetch": PREFETCH,
        "ticket": TICKET,
    }


def _grid(dims: Dims) -> tuple[int, int]:
    return dims["Nv"], dims["S"]


OP = Op(
    name="gated_delta_step",
    params=(
        buf("u", "f32", "T C"),
        buf("z", "f32", "T Nv Dv"),
        buf("a", "f32", "T Nv"),
        buf("b", "f32", "T Nv"),
        buf("conv_w", "f32", "C W"),
        buf("a_log", "f32", "Nv"),
        buf("dt_bias", "f32", "Nv"),
        buf("norm_w", "f32", "Dv"),
        buf("starts", "i32", "S+1"),
        buf("state_in", "i32", "S"),
        buf("state_out", "i32", "S"),
        buf("tickets", "u32", "N", out=True, partial=True),
        buf("conv_state", "f32", "P W-1 C", out=True, partial=True),
        buf("state", "f32", "P Nv Dv Dk", out=True, partial=True, align=16),
        buf("y", "bf16", "T Nv Dv", out=True),
        Param("P", "u32"),
        Param("eps", "f32"),
    ),
    tolerance="bf16_output",
    kernels=(
        Kernel(
            "sm_90a",
            lambda dims: Launch(grid=_grid(dims), block=_block(dims)[0], programmatic=True),
            fits=is_tuned,
            special=("griddepcontrol", "cp.async.bulk.prefetch"),
            constants=_tuned,
        ),
        Kernel(
            "sm_80",
            lambda dims: Launch(grid=_grid(dims), block=_block(dims)[0]),
            fits=is_tuned,
            constants=_tuned,
        ),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(n_key_heads(dims), dims["S"]), block=128),
            constants=_portable,
        ),
    ),
    requires={
        "one more cell in starts than sequences": lambda dims: dims["S+1"] == dims["S"] + 1,
        "one column fewer in conv_state than taps in conv_w":
            lambda dims: dims["W-1"] == dims["W"] - 1,
        "C = 2 Nk Dk + Nv Dv with Nk dividing Nv": key_heads_divide,
        "a ticket for each sequence and key head":
            lambda dims: dims["N"] >= dims["S"] * n_key_heads(dims),
    },
    examples=(
        {"T": 1, "C": 10240, "Nv": 48, "Dv": 128, "Dk": 128, "W": 4, "W-1": 3, "S": 1, "S+1": 2,
         "N": 256, "P": 2},
        {"T": 16, "C": 10240, "Nv": 48, "Dv": 128, "Dk": 128, "W": 4, "W-1": 3, "S": 16,
         "S+1": 17, "N": 256, "P": 16},
    ),
)
