"""The op `count_tokens`: its record; the contract is in `op.py`."""

from ptx.count_tokens.op import OP

__all__ = ["OP"]
