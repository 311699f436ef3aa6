"""The op `linear_swiglu`: its record; the contract is in `op.py`."""

from ptx.linear_swiglu.op import OP

__all__ = ["OP"]
