"""The op `causal_attention_gated`: its record; the contract is in `op.py`."""

from ptx.causal_attention_gated.op import OP

__all__ = ["OP"]
