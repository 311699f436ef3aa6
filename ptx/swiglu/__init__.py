"""The op `swiglu`: its record; the contract is in `op.py`."""

from ptx.swiglu.op import OP

__all__ = ["OP"]
