"""Reference of `encode_e4m3_rows`. The contract is in `op.py`."""

import numpy as np

from ptx.fp8 import E4M3_MAX, E4M3_NAN, round_to_e4m3
from ptx.numerics import Array

SMALLEST_NORMAL = np.float32(2.0**-126)


def encode_e4m3_rows(w: Array, codes: Array, scales: Array, bad: Array) -> None:
    """w [N, K] -> codes e4m3 bits [N, K], scales f32 [N], bad i32 [N].

    In float32 whatever the dtype of `w`: its divisions are what the format is.
    """
    rows = w.astype(np.float32)
    refused = np.asarray(~np.isfinite(rows))
    is_bad = np.asarray(refused.any(axis=1))
    bad[...] = np.where(is_bad, refused.argmax(axis=1), -1)
    largest = np.where(is_bad, np.float32(0), np.abs(rows).max(axis=1))
    wanted = np.maximum(largest / np.float32(E4M3_MAX), SMALLEST_NORMAL)
    divisors = np.where(largest == 0, np.float32(1), wanted)
    scales[...] = np.where(is_bad, 0, divisors)
    quotients = rows / divisors[:, None]
    codes[...] = np.where(is_bad[:, None], np.uint8(E4M3_NAN), round_to_e4m3(quotients))
