"""The op `add_rmsnorm`: its record; the contract is in `op.py`."""

from ptx.add_rmsnorm.op import OP

__all__ = ["OP"]
