"""The op `mask_logits`: its record; the contract is in `op.py`."""

from ptx.mask_logits.op import OP

__all__ = ["OP"]
