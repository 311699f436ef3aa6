"""The op `linear`: its record; the contract is in `op.py`."""

from ptx.linear.op import OP

__all__ = ["OP"]
