"""Owns what the references of the two integer encoders share: scales, integers, refused groups.

It must not know how integers are stored. The contract is in each encoder's `op.py`.
"""

import numpy as np

from ptx.numerics import GROUP, Array, round_to_bf16, widen_bf16

# bf16 bits: 1, the smallest normal number, and the first magnitude that is not finite.
ONE, SMALLEST_NORMAL, INFINITY = 0x3F80, 0x0080, 0x7F80


def encode_groups(w: Array, qmax: int) -> tuple[Array, Array, Array]:
    """w [N, K] -> integers i8 [N, K], scales bf16 bits [N, K / 128], lowest bad group i32 [N].

    In float32 whatever the dtype of `w`: its divisions are what the format is.
    """
    groups = w.astype(np.float32).reshape(len(w), -1, GROUP)
    # A NaN makes the maximum NaN, and with it the scale.
    a = np.abs(groups).max(axis=2)
    scales = np.where(a == 0, np.uint16(ONE), round_to_bf16(a / np.float32(qmax)))
    refused = (scales < SMALLEST_NORMAL) | (scales >= INFINITY)
    scales[refused] = ONE
    q = np.rint(groups / widen_bf16(scales)[:, :, None])
    q[refused] = 0
    scales[refused] = 0
    lowest = np.where(refused.any(axis=1), refused.argmax(axis=1), -1)
    return q.reshape(w.shape).astype(np.int8), scales, lowest.astype(np.int32)
