"""The op `argmax_wide`: its record; the contract is in `op.py`."""

from ptx.argmax_wide.op import OP

__all__ = ["OP"]
