"""argmax: ids[t] = the lowest v whose logits[t,v] is the row's largest, or -1 for a row with a NaN

shapes    logits f32 [T, V]; ids i32 [T]
domain    any float32, infinities included; T, V >= 1
effects   writes all of ids; ids does not overlap logits
rounding  none
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="argmax",
    params=(
        buf("logits", "f32", "T V"),
        buf("ids", "i32", "T", out=True),
        Param("V", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {"entry": "argmax", "wide": False},
        ),
    ),
    examples=({"T": 1, "V": 49152},),
)
