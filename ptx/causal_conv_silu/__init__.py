"""The op `causal_conv_silu`: its record; the contract is in `op.py`."""

from ptx.causal_conv_silu.op import OP

__all__ = ["OP"]
