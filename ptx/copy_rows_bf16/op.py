"""copy_rows_bf16: target[to_rows[i]] = source[from_rows[i]] for i = 0 .. N-1 with from_rows[i] >= 0

A pair with from_rows[i] = -1 copies nothing and its to_rows[i] is not looked at: the padding of a
launch of fixed shape. Row numbers are read from device memory, so that one captured graph
serves every session.

shapes    source bf16 [S, W]; target bf16 [D, W]; from_rows, to_rows i32 [N]
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
    name="copy_rows_bf16",
    params=(
        buf("source", "bf16", "S W"),
        buf("target", "bf16", "D W", out=True, partial=True),
        buf("from_rows", "i32", "N"),
        buf("to_rows", "i32", "N"),
        Param("W", "u32"),
    ),
    tolerance="exact",
    kernels=(portable("copy_rows_bf16", "bf16"),),
    # A page of 16 KV cells.
    examples=({"S": 512, "D": 512, "W": 32768, "N": 1},),
)
