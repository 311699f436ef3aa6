"""The op `sample`: its record; the contract is in `op.py`."""

from ptx.sample.op import OP

__all__ = ["OP"]
