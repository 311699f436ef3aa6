"""The op `linear_xbf16_bf16`: its record; the contract is in `op.py`."""

from ptx.linear_xbf16_bf16.op import OP

__all__ = ["OP"]
