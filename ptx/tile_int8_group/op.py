"""tile_int8_group: w = the tiles of a weight of codes and scales

The order that linear ops over tiles read (`ptx/weight_tiles.py`): tiles of 8 rows by a group
of 128 along K, all of a group before the next, each with its scales behind its codes.
Its inverse is `untile_int8_group`.

shapes    codes i8 [N, K]; scales bf16 [N, R]; w u8 [R, I, Q]
domain    N = 8 I; K = 128 R; Q = 1040; R, I >= 1
effects   writes all of w; no overlap
rounding  none
"""

from ptx.weight_tiles_kernel import op

OP = op(
    "tile_int8_group", "int8", untile=False,
    examples=({"N": 248320, "K": 5120, "R": 40, "I": 31040, "Q": 1040},),
)
