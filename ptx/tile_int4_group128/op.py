"""tile_int4_group128: w = the tiles of a weight of codes and scales

The order that linear ops over tiles read (`ptx/weight_tiles.py`): tiles of 8 rows by a group
of 128 along K, all of a group before the next, each with its scales behind its codes.
Its inverse is `untile_int4_group128`.

shapes    codes u8 [N, J]; scales bf16 [N, R]; w u8 [R, I, Q]
domain    N = 8 I; J = 64 R; Q = 528; R, I >= 1
effects   writes all of w; no overlap
rounding  none
"""

from ptx.weight_tiles_kernel import op

OP = op(
    "tile_int4_group128", "int4", untile=False,
    examples=({"N": 17408, "J": 2560, "R": 40, "I": 2176, "Q": 528},),
)
