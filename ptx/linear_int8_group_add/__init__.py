"""The op `linear_int8_group_add`: its record; the contract is in `op.py`."""

from ptx.linear_int8_group_add.op import OP

__all__ = ["OP"]
