"""The op `untile_int8_group`: its record; the contract is in `op.py`."""

from ptx.untile_int8_group.op import OP

__all__ = ["OP"]
