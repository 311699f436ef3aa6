"""The op `token_signal_wide`: its record; the contract is in `op.py`."""

from ptx.token_signal_wide.op import OP

__all__ = ["OP"]
