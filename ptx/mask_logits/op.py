"""mask_logits: logits[t,v] = -infinity for v = n .. V-1

Rows of a vocabulary table that stand for no token, which may win no choice.

shapes    logits f32 [T, V]
domain    1 <= n < V; T >= 1
effects   writes the cells v >= n of every row, no others
rounding  none
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="mask_logits",
    params=(
        buf("logits", "f32", "T V", out=True, partial=True),
        Param("V", "u32"),
        Param("n", "u32"),
    ),
    tolerance="exact",
    kernels=(Kernel("portable", lambda dims: Launch(grid=dims["T"], block=128)),),
    examples=({"T": 1, "V": 248320}, {"T": 16, "V": 248320}),
)
