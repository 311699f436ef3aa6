"""encode_int8_group: codes[n,k] = round(w[n,k] / scales[n,r]), r = floor(k/128): a group of 128

where scales[n,r] = bf16(a / 127), a = max |w| of the group, or 1 where a is 0;
bad[n] = the lowest r that cannot be encoded, or -1: its group has a NaN or an infinity, or its
scale is below the normal bf16. Such a group's codes and scale bits are 0, which no reader takes.

shapes    w f32 [N, K]; codes i8 [N, K]; scales bf16 [N, R]; bad i32 [N]
domain    any float32; K = 128 R; N, R >= 1
effects   writes all of codes, scales and bad; no overlap
rounding  each division in float32, to nearest, subnormals kept; then to nearest, ties to even:
          the scale to bf16 and w over that bf16 to an integer. It is within -127 .. 127, so the
          format's clip changes nothing: KNOWLEDGE/findings/group-scales-need-no-clip.md
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="encode_int8_group",
    params=(
        buf("w", "f32", "N K"),
        buf("codes", "i8", "N K", out=True),
        buf("scales", "bf16", "N R", out=True),
        buf("bad", "i32", "N", out=True),
        Param("R", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["N"], block=256),
            constants=lambda dims: {"entry": "encode_int8_group", "weight": "int8", "qmax": 127},
        ),
    ),
    requires={"K = 128 R": lambda dims: dims["K"] == 128 * dims["R"]},
    examples=({"N": 17408, "K": 5120, "R": 40},),
)
