"""gated_rmsnorm: y[t,j,d] = o[t,j,d] / sqrt(mean_d(o[t,j,:]^2) + eps) * w[d] * silu(z[t,j,d])

where silu(x) = x / (1 + exp(-x)); the weight is used as it is, and the gate is not normalised.

shapes    o, z, y f32 [T, Nv, Dv]; w f32 [Dv]
domain    all finite; eps > 0; T, Nv, Dv >= 1
effects   writes all of y; y may be o or z, and overlaps none in part
rounding  float32 arithmetic; the order of the sum is free and does not depend on T; a result
          below the smallest normal may be zero
"""

from ptx.op import Kernel, Launch, Op, Param, buf

# The kernel that keeps heads in registers: warps, each with a head, of a block; the widest head.
N_WARPS, MAX_WIDTH = 8, 512

OP = Op(
    name="gated_rmsnorm",
    params=(
        buf("o", "f32", "T Nv Dv"),
        buf("z", "f32", "T Nv Dv"),
        buf("w", "f32", "Dv"),
        buf("y", "f32", "T Nv Dv", out=True),
        Param("Nv", "u32"),
        Param("Dv", "u32"),
        Param("eps", "f32"),
    ),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "sm_80",
            lambda dims: Launch(grid=(dims["T"], -(-dims["Nv"] // N_WARPS)), block=32 * N_WARPS),
            fits=lambda dims: dims["Dv"] <= MAX_WIDTH,
            constants=lambda dims: {
                "width": dims["Dv"], "n_parts": -(-dims["Dv"] // 32), "n_warps": N_WARPS,
            },
        ),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["Nv"]), block=32),
            constants=lambda dims: {"entry": "gated_rmsnorm", "bf16": False},
        ),
    ),
    examples=({"T": 1, "Nv": 48, "Dv": 128}, {"T": 2048, "Nv": 48, "Dv": 128}),
)
