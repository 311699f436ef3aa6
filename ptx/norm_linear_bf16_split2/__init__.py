"""The op `norm_linear_bf16_split2`: its record; the contract is in `op.py`."""

from ptx.norm_linear_bf16_split2.op import OP

__all__ = ["OP"]
