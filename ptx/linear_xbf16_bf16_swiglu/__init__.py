"""The op `linear_xbf16_bf16_swiglu`: its record; the contract is in `op.py`."""

from ptx.linear_xbf16_bf16_swiglu.op import OP

__all__ = ["OP"]
