"""copy_rows: target[to_rows[i]] = source[from_rows[i]] for i = 0 .. N-1 with from_rows[i] >= 0

A pair with from_rows[i] = -1 copies nothing and its to_rows[i] is not looked at: the padding of a
launch of fixed shape. Row numbers are read from device memory, so that one captured graph
serves every session.

shapes    source f32 [S, W]; target f32 [D, W]; from_rows, to_rows i32 [N]
domain    any bits, NaN included; -1 <= from_rows[i] < S; of pairs that copy, 0 <= to_rows[i] < D
          and no two equal; N, S, D, W >= 1
effects   writes the target rows named by pairs that copy, no others. source may be target, so that
          rows move inside one pool, if no pair writes a row that another one reads; else the two
          do not overlap
rounding  none: a row keeps its bits
"""

from ptx.copy_rows_kernel import portable
from ptx.op import Op, Param, buf

OP = Op(
    name="copy_rows",
    params=(
        buf("source", "f32", "S W"),
        buf("target", "f32", "D W", out=True, partial=True),
        buf("from_rows", "i32", "N"),
        buf("to_rows", "i32", "N"),
        Param("W", "u32"),
    ),
    tolerance="exact",
    kernels=(portable("copy_rows", "f32"),),
    # The GatedDeltaNet state of a lane, [48, 128, 128]; a page of 16 KV cells.
    examples=(
        {"S": 8, "D": 8, "W": 786432, "N": 8},
        {"S": 512, "D": 512, "W": 32768, "N": 1},
    ),
)
