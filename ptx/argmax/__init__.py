"""The op `argmax`: its record; the contract is in `op.py`."""

from ptx.argmax.op import OP

__all__ = ["OP"]
