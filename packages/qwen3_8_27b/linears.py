"""Owns which op a linear of the compiled schedule is: form of its weight by epilogue."""

from engine.compiled.records import Form
from ptx.linear_xbf16_bf16_add.op import OP as XBF16_BF16_ADD
from ptx.linear_xbf16_int4_tiles_add.op import OP as XBF16_INT4_ADD
from ptx.linear_xbf16_int8_tiles_add.op import OP as XBF16_INT8_ADD
from ptx.norm_linear_bf16.op import OP as NORM_BF16
from ptx.norm_linear_bf16_split2.op import OP as NORM_BF16_SPLIT2
from ptx.norm_linear_bf16_split3.op import OP as NORM_BF16_SPLIT3
from ptx.norm_linear_bf16_swiglu.op import OP as NORM_BF16_SWIGLU
from ptx.norm_linear_int4_tiles.op import OP as NORM_INT4
from ptx.norm_linear_int4_tiles_split2.op import OP as NORM_INT4_SPLIT2
from ptx.norm_linear_int4_tiles_split3.op import OP as NORM_INT4_SPLIT3
from ptx.norm_linear_int4_tiles_swiglu.op import OP as NORM_INT4_SWIGLU
from ptx.norm_linear_int8_tiles.op import OP as NORM_INT8
from ptx.norm_linear_int8_tiles_split2.op import OP as NORM_INT8_SPLIT2
from ptx.norm_linear_int8_tiles_split3.op import OP as NORM_INT8_SPLIT3
from ptx.norm_linear_int8_tiles_swiglu.op import OP as NORM_INT8_SWIGLU
from ptx.op import Op

# Up to 16 rows, over the rmsnorm of the residual stream: one output, two, three, gate and up.
NORMED: dict[Form, dict[str, Op]] = {
    "bf16": {
        "one": NORM_BF16, "two": NORM_BF16_SPLIT2, "three": NORM_BF16_SPLIT3,
        "swiglu": NORM_BF16_SWIGLU,
    },
    "int4_tiles": {
        "one": NORM_INT4, "two": NORM_INT4_SPLIT2, "three": NORM_INT4_SPLIT3,
        "swiglu": NORM_INT4_SWIGLU,
    },
    "int8_tiles": {
        "one": NORM_INT8, "two": NORM_INT8_SPLIT2, "three": NORM_INT8_SPLIT3,
        "swiglu": NORM_INT8_SWIGLU,
    },
}
# Up to 16 rows of bf16, added to the residual stream.
ADDED: dict[Form, Op] = {
    "bf16": XBF16_BF16_ADD, "int4_tiles": XBF16_INT4_ADD, "int8_tiles": XBF16_INT8_ADD,
}
