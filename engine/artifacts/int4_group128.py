"""Owns the packing of `int4_symmetric_group_bf16_scale`: codes -7..7, two to a byte.

The rest of the format is in `group_codes.py`. A nibble is two's complement; the even K index is the
low nibble, so the byte of (row, k) is (row K + k) / 2. The nibble 8 (-8) is invalid. With the
scales it takes 0.515625 bytes for a weight.
"""

import numpy as np
import numpy.typing as npt

from engine.artifacts.group_codes import Codes, GroupFormat, SmallInts

# Two neighbouring codes are handled as one 16-bit word: the even one is its low byte.
_WORD = np.dtype("<u2")


def _pack(q: SmallInts) -> npt.NDArray[np.uint8]:
    """q int8 [n, K] in -8..7 -> uint8 [n, K / 2]."""
    words = np.ascontiguousarray(q).view(_WORD)
    return ((words & 0x000F) | ((words >> 4) & 0x00F0)).astype(np.uint8)


def _unpack(codes: Codes) -> SmallInts:
    """codes uint8 [n, K / 2] -> int8 [n, K] in -8..7."""
    words = codes.astype(_WORD)
    nibbles = ((words & 0x000F) | ((words & 0x00F0) << 4)).view(np.int8)
    nibbles ^= 8
    nibbles -= 8
    return nibbles


INT4 = GroupFormat(
    name="int4_symmetric_group_bf16_scale",
    qmax=7,
    codes_per_byte=2,
    code_dtype="u1",
    pack=_pack,
    unpack=_unpack,
)
