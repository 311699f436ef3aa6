"""The op `rope_append_kv`: its record; the contract is in `op.py`."""

from ptx.rope_append_kv.op import OP

__all__ = ["OP"]
