"""Owns correctly rounded arithmetic that numpy lacks: fused multiply-add, elementary functions.

It must not know instructions or types beyond float32 and float64. An inexact float64 is handed on
rounded to odd, which keeps a second, shorter rounding correct.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

from ptx.emulator.formats import canonical, to_f32
from ptx.numerics import Array

# A float64 with these low bits lies exactly between two neighbouring normal float32.
MIDDLE, BELOW_F32 = np.uint64(1 << 28), np.uint64((1 << 29) - 1)
SMALLEST_NORMAL = 2.0**-126
# Splitting a float64 into two halves of 26 bits neither overflows nor loses bits in this range.
SAFE_EXPONENT = 450
N_DECIMALS = 100


def add_odd(a: Array, b: Array, mode: str = "rn") -> Array:
    """a + b in float64, rounded to odd where it is not exact; the sign of zero as in `mode`."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    total = _to_odd(total, np.where(np.isfinite(total), error, 0.0))
    if mode == "rm":
        # What cancels is -0 when rounding goes down.
        total = np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)
    return total


def _to_odd(total: Array, error: Array) -> Array:
    bits = np.ascontiguousarray(total).view(np.uint64).reshape(np.shape(total))
    even = (bits & np.uint64(1)) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, toward), total)


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a b + c of float32 arrays with one rounding, as float32."""
    product = np.multiply(a, b, dtype=np.float64)
    if mode != "rn":
        return to_f32(add_odd(product, np.asarray(c, np.float64), mode), mode)
    wide = np.asarray(product + c)
    single = wide.astype(np.float32)
    # Only a sum that fell on the middle between two float32, or among the subnormal ones, can
    # round twice into something else.
    risky = (wide.view(np.uint64) & BELOW_F32) == MIDDLE
    risky |= np.abs(wide) < 2 * SMALLEST_NORMAL
    if risky.any():
        single = np.where(risky, add_odd(product, np.asarray(c, np.float64)), wide).astype(
            np.float32
        )
    return canonical(single)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a b + c of float64 arrays with one rounding to nearest even."""
    a, b, c = (np.array(x) for x in np.broadcast_arrays(a, b, c))
    high = a * b
    low = _product_error(a, b, high)
    # Boldo and Melquiond: the sum of the low parts rounded to odd, then one plain addition.
    total, rest = _two_sum(c, low)
    top, middle = _two_sum(high, total)
    result = np.asarray(top + add_odd(middle, rest))
    exponents = [np.frexp(x)[1] for x in (a, b, c)]
    unsafe = np.zeros(a.shape, bool)
    for x, exponent in zip((a, b, c), exponents, strict=True):
        unsafe |= (np.abs(exponent) > SAFE_EXPONENT) & (x != 0)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = np.where(finite & (low != 0), result, high + c)
    if (unsafe & finite).any():
        result = np.array(result)
        for at in zip(*np.nonzero(unsafe & finite), strict=True):
            result[at] = _fma_by_fraction(float(a[at]), float(b[at]), float(c[at]))
    return result


def _fma_by_fraction(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    a_high, b_high = _high_half(a), _high_half(b)
    a_low, b_low = a - a_high, b - b_high
    error: Array = a_low * b_low - (
        ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
    )
    return error


def _high_half(x: Array) -> Array:
    scaled = x * 134217729.0
    high: Array = scaled - (scaled - x)
    return high


def correctly_rounded(
    x: Array, fast: Callable[[Array], Array], exact: Callable[[Decimal], Decimal]
) -> Array:
    """A function of a float32 array, correctly rounded to float32.

    `fast` is right to a few units of float64; where that leaves the float32 open, `exact` decides
    with 100 decimal digits.
    """
    wide = np.asarray(fast(np.asarray(x, np.float64)), np.float64)
    single = wide.astype(np.float32)
    low = np.abs(wide) * 2.0**-50
    open_ = ((wide - low).astype(np.float32) != (wide + low).astype(np.float32)) & (wide != 0)
    open_ &= np.isfinite(wide) & np.isfinite(x)
    if open_.any():
        single = np.array(single)
        for at in zip(*np.nonzero(open_), strict=True):
            single[at] = _exactly(float(x[at]), exact)
    return canonical(single)


def _exactly(x: float, exact: Callable[[Decimal], Decimal]) -> np.float32:
    with localcontext(Context(prec=N_DECIMALS)):
        value = exact(Decimal(x))
    wide = np.float64(float(value))
    error = value - Decimal(float(wide))
    odd = _to_odd(np.asarray(wide), np.asarray(float(np.sign(float(error)))))
    return np.float32(odd)


def exp2_decimal(x: Decimal) -> Decimal:
    """2 to the x."""
    return (x * Decimal(2).ln()).exp()


def log2_decimal(x: Decimal) -> Decimal:
    """The logarithm to base 2."""
    return x.ln() / Decimal(2).ln()


def rsqrt_decimal(x: Decimal) -> Decimal:
    """1 over the root."""
    return 1 / x.sqrt()


def tanh_decimal(x: Decimal) -> Decimal:
    """The hyperbolic tangent."""
    square = (2 * x).exp()
    return (square - 1) / (square + 1)


def sin_decimal(x: Decimal) -> Decimal:
    """The sine, by its series after the argument is brought below one turn."""
    return _series(x, 1)


def cos_decimal(x: Decimal) -> Decimal:
    """The cosine."""
    return _series(x, 0)


def _series(x: Decimal, n: int) -> Decimal:
    turn = 8 * _arctan_of_inverse(5) * 4 - 8 * _arctan_of_inverse(239)
    # A float32 argument has at most 39 digits before the point, so working digits must cover them.
    rest = x - turn * (x / turn).to_integral_value()
    term = rest if n else Decimal(1)
    total = term
    for k in range(n + 2, 200, 2):
        term = -term * rest * rest / (k * (k - 1))
        total += term
    return total


def _arctan_of_inverse(n: int) -> Decimal:
    power = total = Decimal(1) / n
    for k in range(3, 160, 2):
        power = -power / (n * n)
        total += power / k
    return total
