"""The op `encode_nvfp4`: its record; the contract is in `op.py`."""

from ptx.encode_nvfp4.op import OP

__all__ = ["OP"]
