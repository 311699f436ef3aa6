"""untile_int4_group128: codes and scales of the weight whose tiles are w

The inverse of `tile_int4_group128`: row-major codes, and one scale for each row and group.

shapes    codes u8 [N, J]; scales bf16 [N, R]; w u8 [R, I, Q]
domain    N = 8 I; J = 64 R; Q = 528; R, I >= 1
effects   writes all of codes and scales; no overlap
rounding  none
"""

from ptx.weight_tiles_kernel import op

OP = op(
    "untile_int4_group128", "int4", untile=True,
    examples=({"N": 17408, "J": 2560, "R": 40, "I": 2176, "Q": 528},),
)
