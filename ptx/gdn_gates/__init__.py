"""The op `gdn_gates`: its record; the contract is in `op.py`."""

from ptx.gdn_gates.op import OP

__all__ = ["OP"]
