"""Reference of `sample_wide`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.sample.ref import sample


def sample_wide(
    z: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    log_min_p: Array,
    seed: Array,
    draw: Array,
    ids: Array,
    weights: Array,
    n_left: Array,
    work: Array,
) -> None:
    """As `sample`; work [T, W] zeros, left alone."""
    sample(z, temperature, top_k, top_p, log_min_p, seed, draw, ids, weights, n_left)
