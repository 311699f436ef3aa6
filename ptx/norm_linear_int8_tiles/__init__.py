"""The op `norm_linear_int8_tiles`: its record; the contract is in `op.py`."""

from ptx.norm_linear_int8_tiles.op import OP

__all__ = ["OP"]
