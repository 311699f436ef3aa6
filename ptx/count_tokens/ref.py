"""Reference of `count_tokens`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def count_tokens(counts: Array, ids: Array, lanes: Array, delta: Array) -> None:
    """delta [T] into cells (lanes [T], ids [T]) of counts [P, V]."""
    real = lanes != -1
    # Unlike `counts[...] += delta`, this adds once for every t that names a cell.
    np.add.at(counts, (lanes[real], ids[real]), delta[real])
