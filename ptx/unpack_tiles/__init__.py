"""The op `unpack_tiles`: its record; the contract is in `op.py`."""

from ptx.unpack_tiles.op import OP

__all__ = ["OP"]
