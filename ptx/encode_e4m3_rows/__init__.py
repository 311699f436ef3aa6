"""The op `encode_e4m3_rows`: its record; the contract is in `op.py`."""

from ptx.encode_e4m3_rows.op import OP

__all__ = ["OP"]
