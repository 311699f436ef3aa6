"""The op `linear_xbf16_int8_tiles`: its record; the contract is in `op.py`."""

from ptx.linear_xbf16_int8_tiles.op import OP

__all__ = ["OP"]
