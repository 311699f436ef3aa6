"""The op `qgate_norm_rope_append_pages`: its record; the contract is in `op.py`."""

from ptx.qgate_norm_rope_append_pages.op import OP

__all__ = ["OP"]
