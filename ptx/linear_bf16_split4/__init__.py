"""The op `linear_bf16_split4`: its record; the contract is in `op.py`."""

from ptx.linear_bf16_split4.op import OP

__all__ = ["OP"]
