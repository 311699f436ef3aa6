"""The op `pack_nvfp4_scales`: its record; the contract is in `op.py`."""

from ptx.pack_nvfp4_scales.op import OP

__all__ = ["OP"]
