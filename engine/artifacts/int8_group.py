"""Owns the packing of `int8_symmetric_group_bf16_scale`: codes -127..127, one int8 each.

The rest of the format is in `group_codes.py`; -128 is invalid. With the scales it takes 1.015625
bytes for a weight.
"""

import numpy as np

from engine.artifacts.group_codes import Codes, GroupFormat, SmallInts


def _as_stored(codes: Codes) -> SmallInts:
    return codes.astype(np.int8, copy=False)


INT8 = GroupFormat(
    name="int8_symmetric_group_bf16_scale",
    qmax=127,
    codes_per_byte=1,
    code_dtype="i1",
    pack=_as_stored,
    unpack=_as_stored,
)
