"""The op `fill_bits`: its record; the contract is in `op.py`."""

from ptx.fill_bits.op import OP

__all__ = ["OP"]
