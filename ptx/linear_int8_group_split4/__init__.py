"""The op `linear_int8_group_split4`: its record; the contract is in `op.py`."""

from ptx.linear_int8_group_split4.op import OP

__all__ = ["OP"]
