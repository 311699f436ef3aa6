"""The op `linear_xbf16_int4_tiles_add`: its record; the contract is in `op.py`."""

from ptx.linear_xbf16_int4_tiles_add.op import OP

__all__ = ["OP"]
