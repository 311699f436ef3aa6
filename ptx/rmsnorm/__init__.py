"""The op `rmsnorm`: its record; the contract is in `op.py`."""

from ptx.rmsnorm.op import OP

__all__ = ["OP"]
