"""The op `top_k`: its record; the contract is in `op.py`."""

from ptx.top_k.op import OP

__all__ = ["OP"]
