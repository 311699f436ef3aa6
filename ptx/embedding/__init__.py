"""The op `embedding`: its record; the contract is in `op.py`."""

from ptx.embedding.op import OP

__all__ = ["OP"]
