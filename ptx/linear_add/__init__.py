"""The op `linear_add`: its record; the contract is in `op.py`."""

from ptx.linear_add.op import OP

__all__ = ["OP"]
