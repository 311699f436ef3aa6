"""The op `copy_rows_bf16`: its record; the contract is in `op.py`."""

from ptx.copy_rows_bf16.op import OP

__all__ = ["OP"]
