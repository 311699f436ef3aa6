"""The op `linear_e4m3`: its record; the contract is in `op.py`."""

from ptx.linear_e4m3.op import OP

__all__ = ["OP"]
