"""The op `norm_linear_bf16_split3`: its record; the contract is in `op.py`."""

from ptx.norm_linear_bf16_split3.op import OP

__all__ = ["OP"]
