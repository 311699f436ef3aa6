"""The op `linear_int4_group128_swiglu`: its record; the contract is in `op.py`."""

from ptx.linear_int4_group128_swiglu.op import OP

__all__ = ["OP"]
