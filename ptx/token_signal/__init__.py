"""The op `token_signal`: its record; the contract is in `op.py`."""

from ptx.token_signal.op import OP

__all__ = ["OP"]
