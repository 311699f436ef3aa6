"""The op `repack_tiles`: its record; the contract is in `op.py`."""

from ptx.repack_tiles.op import OP

__all__ = ["OP"]
