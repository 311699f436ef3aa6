"""The op `adjust_logits`: its record; the contract is in `op.py`."""

from ptx.adjust_logits.op import OP

__all__ = ["OP"]
