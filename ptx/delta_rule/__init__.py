"""The op `delta_rule`: its record; the contract is in `op.py`."""

from ptx.delta_rule.op import OP

__all__ = ["OP"]
