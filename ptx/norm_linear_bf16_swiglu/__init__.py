"""The op `norm_linear_bf16_swiglu`: its record; the contract is in `op.py`."""

from ptx.norm_linear_bf16_swiglu.op import OP

__all__ = ["OP"]
