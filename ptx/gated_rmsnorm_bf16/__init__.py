"""The op `gated_rmsnorm_bf16`: its record; the contract is in `op.py`."""

from ptx.gated_rmsnorm_bf16.op import OP

__all__ = ["OP"]
