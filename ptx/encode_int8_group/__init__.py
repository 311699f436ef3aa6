"""The op `encode_int8_group`: its record; the contract is in `op.py`."""

from ptx.encode_int8_group.op import OP

__all__ = ["OP"]
