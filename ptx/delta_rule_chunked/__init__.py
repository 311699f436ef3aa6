"""The op `delta_rule_chunked`: its record; the contract is in `op.py`."""

from ptx.delta_rule_chunked.op import OP

__all__ = ["OP"]
