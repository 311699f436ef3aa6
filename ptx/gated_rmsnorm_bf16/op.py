"""gated_rmsnorm_bf16: the `gated_rmsnorm` of o under z, rounded to bf16

y[t,j,d] = bf16(o[t,j,d] / sqrt(mean_d(o[t,j,:]^2) + eps) * w[d] * silu(z[t,j,d]))
where silu(x) = x / (1 + exp(-x)); the weight is used as it is, and the gate is not normalised.
What a linear takes.

shapes    o, z f32 [T, Nv, Dv]; w f32 [Dv]; y bf16 [T, Nv, Dv]
domain    all finite; eps > 0; T, Nv, Dv >= 1
effects   writes all of y; no overlap
rounding  float32 arithmetic; the order of the sum is free and does not depend on T; y is rounded
          once, to nearest, ties to even; a result below the smallest normal float32 may be zero
"""

from ptx.op import Kernel, Launch, Op, Param, buf

# The tuned kernel: lanes that share a head, warps of a block, the widest head, which a lane has 16
# cells of. 48 heads are three blocks.
LANES, N_WARPS, MAX_WIDTH = 8, 4, 128
N_HEADS = N_WARPS * 32 // LANES
# Cells of a head that its lanes take at once, four each.
SPAN = 4 * LANES


def _tuned(target: str) -> Kernel:
    """Four heads to a warp, every cell in a register; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch(
            grid=(dims["T"], -(-dims["Nv"] // N_HEADS)), block=32 * N_WARPS, programmatic=pdl
        ),
        fits=lambda dims: dims["Dv"] % SPAN == 0 and dims["Dv"] <= MAX_WIDTH,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: {
            "pdl": pdl, "width": dims["Dv"], "vectors": dims["Dv"] // SPAN, "span": SPAN,
            "n_warps": N_WARPS, "lanes": LANES,
        },
    )


OP = Op(
    name="gated_rmsnorm_bf16",
    params=(
        buf("o", "f32", "T Nv Dv", align=16),
        buf("z", "f32", "T Nv Dv", align=16),
        buf("w", "f32", "Dv", align=16),
        buf("y", "bf16", "T Nv Dv", out=True, align=16),
        Param("Nv", "u32"),
        Param("Dv", "u32"),
        Param("eps", "f32"),
    ),
    tolerance="bf16_output",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["Nv"]), block=32),
            constants=lambda dims: {"entry": "gated_rmsnorm_bf16", "bf16": True},
        ),
    ),
    examples=tuple({"T": n_tokens, "Nv": 48, "Dv": 128} for n_tokens in (1, 512, 2048)),
)
