"""The op `attention`: its record; the contract is in `op.py`."""

from ptx.attention.op import OP

__all__ = ["OP"]
