"""The op `causal_attention`: its record; the contract is in `op.py`."""

from ptx.causal_attention.op import OP

__all__ = ["OP"]
