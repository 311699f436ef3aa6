"""The op `norm_linear_bf16`: its record; the contract is in `op.py`."""

from ptx.norm_linear_bf16.op import OP

__all__ = ["OP"]
