"""The op `copy_rows`: its record; the contract is in `op.py`."""

from ptx.copy_rows.op import OP

__all__ = ["OP"]
