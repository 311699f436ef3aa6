"""Owns the one import of the module that cffi makes inside the engine library.

It exists only in a process that has loaded the library: `ffi` makes and reads C values, `lib`
holds the C helpers, the constants, and the functions that `registry` fills.
"""

from _mesh_specialize_ffi import ffi, lib

__all__ = ["ffi", "lib"]
