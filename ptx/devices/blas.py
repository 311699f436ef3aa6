"""Owns the thread count of the BLAS that numpy carries, set at run time.

Only the library inside numpy's own wheel is touched: a BLAS of the host process is the host's.
The environment cannot be used, because it is the host's too and numpy reads it once at import.
"""

import ctypes
from pathlib import Path

import numpy as np

SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def limit_threads(n_threads: int) -> bool:
    """Give numpy's own BLAS `n_threads` threads; False when numpy carries none that can be told."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".libs", package / ".dylibs")
    for library in sorted(path for folder in folders for path in folder.glob("*openblas*")):
        handle = ctypes.CDLL(str(library))
        for name in SETTERS:
            setter = getattr(handle, name, None)
            if setter is not None:
                setter(ctypes.c_int(n_threads))
                return True
    return False
