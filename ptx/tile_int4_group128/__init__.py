"""The op `tile_int4_group128`: its record; the contract is in `op.py`."""

from ptx.tile_int4_group128.op import OP

__all__ = ["OP"]
