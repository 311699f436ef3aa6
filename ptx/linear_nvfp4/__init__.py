"""The op `linear_nvfp4`: its record; the contract is in `op.py`."""

from ptx.linear_nvfp4.op import OP

__all__ = ["OP"]
