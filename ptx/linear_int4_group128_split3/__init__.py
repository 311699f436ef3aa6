"""The op `linear_int4_group128_split3`: its record; the contract is in `op.py`."""

from ptx.linear_int4_group128_split3.op import OP

__all__ = ["OP"]
