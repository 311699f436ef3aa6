"""Owns what numpy lacks of e4m3, an 8-bit float: values of its codes, and the code of a value.

It must not know ops, nor the emulator, which has grids of its own that these are judged by. A code
is a sign, four bits of exponent with bias 7 and three of fraction; 0x7F and 0xFF are NaN, there is
no infinity, 448 is the largest.
"""

import numpy as np

from ptx.numerics import Array

E4M3_MAX = 448.0
E4M3_NAN = 0x7F


def _magnitudes() -> Array:
    """float64 [127] of the codes 0 .. 0x7E."""
    codes = np.arange(E4M3_NAN)
    exponent, fraction = codes >> 3, codes & 7
    # Exponent 0 has no leading one, and the steps of exponent 1.
    steps = np.where(exponent == 0, fraction, 8 + fraction)
    magnitudes: Array = np.ldexp(steps.astype(np.float64), np.maximum(exponent, 1) - 10)
    return magnitudes


E4M3_MAGNITUDES = _magnitudes()


def nearest(x: Array, magnitudes: Array) -> Array:
    """Index of the magnitude nearest to each |x|, ties to the even index, the last one beyond it.

    `magnitudes` are float64 and ascend; their middles must be float64 too. A NaN gives the last.
    """
    middles = (magnitudes[:-1] + magnitudes[1:]) / 2
    wide = np.abs(x.astype(np.float64))
    index = np.searchsorted(middles, wide)
    # On a middle searchsorted stays below it, which is right for an even index.
    tie = wide == np.append(middles, np.nan)[index]
    return np.asarray(index + (tie & (index % 2 == 1)))


def round_to_e4m3(x: Array) -> Array:
    """Codes, uint8, of the e4m3 nearest to each cell; ties go to even, past 448 it stays at 448.

    The sign of a zero is kept; NaN is 0x7F, as cvt.rn.satfinite.e4m3x2.f32 has it.
    """
    signs = np.where(np.signbit(x), np.uint8(0x80), np.uint8(0))
    codes = nearest(x, E4M3_MAGNITUDES).astype(np.uint8) | signs
    return np.where(np.isnan(x), np.uint8(E4M3_NAN), codes)


def widen_e4m3(codes: Array) -> Array:
    """float32 values of codes, exact."""
    magnitudes = np.append(E4M3_MAGNITUDES, np.nan).astype(np.float32)
    values: Array = np.concatenate([magnitudes, -magnitudes])[codes]
    return values
