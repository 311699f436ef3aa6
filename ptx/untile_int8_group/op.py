"""untile_int8_group: codes and scales of the weight whose tiles are w

The inverse of `tile_int8_group`: row-major codes, and one scale for each row and group.

shapes    codes i8 [N, K]; scales bf16 [N, R]; w u8 [R, I, Q]
domain    N = 8 I; K = 128 R; Q = 1040; R, I >= 1
effects   writes all of codes and scales; no overlap
rounding  none
"""

from ptx.weight_tiles_kernel import op

OP = op(
    "untile_int8_group", "int8", untile=True,
    examples=({"N": 248320, "K": 5120, "R": 40, "I": 31040, "Q": 1040},),
)
