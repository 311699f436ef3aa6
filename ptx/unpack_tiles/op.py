"""unpack_tiles: y[i P + p, j Q + q] = x[i,j,p,q]

The inverse of `repack_tiles`: bytes in tile order, tiles of P rows by Q bytes, back to the rows of
a weight.

shapes    x u8 [I, J, P, Q]; y u8 [N, B]
domain    N = I P; B = J Q; I, J, P, Q >= 1
effects   writes all of y; y does not overlap x
rounding  none
"""

from ptx.op import Op, Param, buf
from ptx.tiles_kernel import portable

OP = Op(
    name="unpack_tiles",
    params=(
        buf("x", "u8", "I J P Q"),
        buf("y", "u8", "N B", out=True),
        Param("J", "u32"),
        Param("P", "u32"),
        Param("Q", "u32"),
    ),
    tolerance="exact",
    kernels=(portable("unpack_tiles", unpack=True),),
    requires={
        "N = I P": lambda dims: dims["N"] == dims["I"] * dims["P"],
        "B = J Q": lambda dims: dims["B"] == dims["J"] * dims["Q"],
    },
    # Packed int4 of 17,408 rows of 5,120, in tiles of 64 rows by 16 bytes.
    examples=({"N": 17408, "B": 2560, "I": 272, "J": 160, "P": 64, "Q": 16},),
)
