"""The op `sigmoid_gate`: its record; the contract is in `op.py`."""

from ptx.sigmoid_gate.op import OP

__all__ = ["OP"]
