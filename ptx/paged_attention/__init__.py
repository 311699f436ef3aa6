"""The op `paged_attention`: its record; the contract is in `op.py`."""

from ptx.paged_attention.op import OP

__all__ = ["OP"]
