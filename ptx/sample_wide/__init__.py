"""The op `sample_wide`: its record; the contract is in `op.py`."""

from ptx.sample_wide.op import OP

__all__ = ["OP"]
