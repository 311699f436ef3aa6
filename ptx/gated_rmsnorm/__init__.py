"""The op `gated_rmsnorm`: its record; the contract is in `op.py`."""

from ptx.gated_rmsnorm.op import OP

__all__ = ["OP"]
