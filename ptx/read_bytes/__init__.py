"""The op `read_bytes`: its record; the contract is in `op.py`."""

from ptx.read_bytes.op import OP

__all__ = ["OP"]
