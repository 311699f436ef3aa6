"""The op `norm_linear_int8_tiles_split2`: its record; the contract is in `op.py`."""

from ptx.norm_linear_int8_tiles_split2.op import OP

__all__ = ["OP"]
