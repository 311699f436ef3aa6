"""Reference of `encode_nvfp4`. The contract is in `op.py`."""

import numpy as np

from ptx.fp8 import E4M3_NAN, round_to_e4m3, widen_e4m3
from ptx.numerics import Array
from ptx.nvfp4 import BLOCK, E2M1_MAX, pack_nibbles, round_to_e2m1

AN_EIGHTH = 0x20  # of e4m3


def encode_nvfp4(w: Array, global_scale: Array, codes: Array, scales: Array, bad: Array) -> None:
    """w [N, K], global_scale [1] -> codes u8 [N, K / 2], scales e4m3 bits [N, K / 16], bad i32 [N].

    In float32 whatever the dtype of `w`: its divisions are what the format is.
    """
    groups = w.astype(np.float32).reshape(len(w), -1, BLOCK)
    factor = global_scale.astype(np.float32)
    refused = np.asarray(~np.isfinite(groups).all(axis=2))
    groups = np.where(refused[:, :, None], np.float32(0), groups)
    # Past the largest float32 a scale is 448, and a quotient 6, as past any other number.
    with np.errstate(over="ignore"):
        wanted = round_to_e4m3(np.abs(groups).max(axis=2) / np.float32(E2M1_MAX) * factor)
        wanted = np.where(wanted == 0, np.uint8(AN_EIGHTH), wanted)
        q = round_to_e2m1(groups / (widen_e4m3(wanted) / factor)[:, :, None])
    codes[...] = pack_nibbles(q.reshape(w.shape))
    scales[...] = np.where(refused, np.uint8(E4M3_NAN), wanted)
    bad[...] = np.where(refused.any(axis=1), refused.argmax(axis=1), -1)
