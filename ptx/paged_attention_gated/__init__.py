"""The op `paged_attention_gated`: its record; the contract is in `op.py`."""

from ptx.paged_attention_gated.op import OP

__all__ = ["OP"]
