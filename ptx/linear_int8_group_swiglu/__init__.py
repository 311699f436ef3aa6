"""The op `linear_int8_group_swiglu`: its record; the contract is in `op.py`."""

from ptx.linear_int8_group_swiglu.op import OP

__all__ = ["OP"]
