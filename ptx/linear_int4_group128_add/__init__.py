"""The op `linear_int4_group128_add`: its record; the contract is in `op.py`."""

from ptx.linear_int4_group128_add.op import OP

__all__ = ["OP"]
