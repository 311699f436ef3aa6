"""repack_tiles: y[i,j,p,q] = x[i P + p, j Q + q]

The bytes of a row-major weight in tile order: tiles of P rows by Q bytes, all of a row of tiles
before the next; inside a tile row by row. x is what the weight's cells are made of, whatever they
are: bf16, int8, packed int4, or scales. The shape of y says what the tiles are. Its inverse is
`unpack_tiles`.

shapes    x u8 [N, B]; y u8 [I, J, P, Q]
domain    N = I P; B = J Q; I, J, P, Q >= 1
effects   writes all of y; y does not overlap x
rounding  none
"""

from ptx.op import Op, Param, buf
from ptx.tiles_kernel import portable

OP = Op(
    name="repack_tiles",
    params=(
        buf("x", "u8", "N B"),
        buf("y", "u8", "I J P Q", out=True),
        Param("J", "u32"),
        Param("P", "u32"),
        Param("Q", "u32"),
    ),
    tolerance="exact",
    kernels=(portable("repack_tiles", unpack=False),),
    requires={
        "N = I P": lambda dims: dims["N"] == dims["I"] * dims["P"],
        "B = J Q": lambda dims: dims["B"] == dims["J"] * dims["Q"],
    },
    # Packed int4 of 17,408 rows of 5,120, in tiles of 64 rows by 16 bytes.
    examples=({"N": 17408, "B": 2560, "I": 272, "J": 160, "P": 64, "Q": 16},),
)
