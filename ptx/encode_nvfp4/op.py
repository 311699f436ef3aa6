"""encode_nvfp4: q[n,k] = e2m1(w[n,k] / (scales[n,r] / global_scale)), r = floor(k/16)

where scales[n,r] = e4m3((a / 6) global_scale), a = max |w| of the group of 16, or 1/8 where that
code is 0; codes[n,j] has q[n,2j] in its low nibble and q[n,2j+1] in its high one. global_scale is a
divisor, 448 x 6 / max |w| over the matrix (or what a model was calibrated with), and is given.
bad[n] = the lowest r whose group has a NaN or an infinity, or -1; the codes of such a group are 0
and its scale is 0x7F, which is NaN, and so is all that is made of it.

shapes    w f32 [N, K]; global_scale f32 [1]; codes u8 [N, J]; scales e4m3 [N, R]; bad i32 [N]
domain    any w; global_scale finite, > 0; K % 64 == 0; K = 2 J = 16 R; N >= 1
effects   writes all of codes, scales and bad; no overlap
rounding  both divisions of a weight, a / 6 and its product in float32, to nearest, subnormals kept;
          then to the nearest code, ties to even, past the largest it stays there; signs are kept
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="encode_nvfp4",
    params=(
        buf("w", "f32", "N K", align=16),
        buf("global_scale", "f32", "1"),
        buf("codes", "u8", "N J", out=True, align=16),
        buf("scales", "e4m3", "N R", out=True),
        buf("bad", "i32", "N", out=True),
        Param("R", "u32"),
    ),
    tolerance="exact",
    kernels=(Kernel("portable", lambda dims: Launch(grid=dims["N"], block=128)),),
    requires={
        "K % 64 == 0": lambda dims: dims["K"] % 64 == 0,
        "K = 2 J": lambda dims: dims["K"] == 2 * dims["J"],
        "K = 16 R": lambda dims: dims["K"] == 16 * dims["R"],
        "one global_scale": lambda dims: dims["1"] == 1,
    },
    examples=({"N": 17408, "K": 5120, "J": 2560, "R": 320, "1": 1},),
)
