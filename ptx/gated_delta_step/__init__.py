"""The op `gated_delta_step`: its record; the contract is in `op.py`."""

from ptx.gated_delta_step.op import OP

__all__ = ["OP"]
