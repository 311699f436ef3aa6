"""The op `fill_uniform`: its record; the contract is in `op.py`."""

from ptx.fill_uniform.op import OP

__all__ = ["OP"]
