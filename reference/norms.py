"""Owns the three normalisations and the scalar functions of the model, in float64.

They differ in where the constant sits and in how the weight enters; mixing them up still gives
fluent text, so each has its own function. Rounding points are the caller's, save those inside.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.rounding import EXACT, Rounding

Array = npt.NDArray[Any]

# Added to the sum of squares, whatever rms_norm_eps says.
L2_EPS = 1e-6


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), any shape, without overflow."""
    # e^-|x| never overflows, and neither branch then loses the tail.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def silu(x: Array) -> Array:
    """x * sigmoid(x), any shape."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """ln(1 + e^x), any shape, without overflow."""
    return np.logaddexp(0.0, x)


def rms1(x: Array, w: Array, eps: float) -> Array:
    """x [..., N], w [N] -> x / rms(x) * (1 + w) over the last axis; the weight is zero-centred."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    y: Array = x / np.sqrt(mean + eps) * (1.0 + w)
    return y


def gated_norm(o: Array, z: Array, w: Array, eps: float, rounding: Rounding = EXACT) -> Array:
    """o, z [..., Dv], w [Dv] -> o / rms(o) * w * silu(z): plain weight, gate last."""
    mean = np.mean(o * o, axis=-1, keepdims=True)
    unit = rounding("gated_unit", o / np.sqrt(mean + eps))
    return rounding("gated_weighted", unit * w) * silu(z)


def l2(x: Array) -> Array:
    """x [..., N] -> x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    y: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)
    return y
