"""encode_bf16: y[t,k] = the bf16 nearest to x[t,k], ties to even

Past the largest bf16 (from the float32 0x7F7F8000 on) it is infinity; zeros and subnormals keep
their sign and are rounded like the rest; every NaN becomes 0x7FFF, without its sign and payload.

shapes    x f32 [T, K]; y bf16 [T, K]
domain    any float32; T, K >= 1
effects   writes all of y; y does not overlap x
rounding  once, to nearest, ties to even
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="encode_bf16",
    params=(
        buf("x", "f32", "T K"),
        buf("y", "bf16", "T K", out=True),
        Param("T", "u32"),
        Param("K", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel("portable", lambda dims: Launch(grid=-(-dims["T"] * dims["K"] // 256), block=256)),
    ),
    examples=({"T": 248320, "K": 5120},),
)
