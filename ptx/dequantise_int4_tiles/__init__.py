"""The op `dequantise_int4_tiles`: its record; the contract is in `op.py`."""

from ptx.dequantise_int4_tiles.op import OP

__all__ = ["OP"]
