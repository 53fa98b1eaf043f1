"""Elementary functions in plain float32 arithmetic, so that the compiler can vectorise the loops that call them."""

from __future__ import annotations

import numpy as np
from numba import njit

from quire_kernels.cpu.intrinsics import bits_of_float32, float32_of_bits

_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_SQRT_HALF = np.float32(0.70710678118654752440)


@njit(inline="always", error_model="numpy")
def exp(x):
    """e**x for float32 to about 2 units in the last place; 0 towards -inf, about 1.7e38 towards +inf."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    scaled = x * _LOG2_E
    whole = np.int32(scaled + np.float32(0.5) if scaled >= np.float32(0.0) else scaled - np.float32(0.5))
    n = np.float32(whole)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * float32_of_bits(np.int32((whole + np.int32(127)) << np.int32(23)))


@njit(inline="always", error_model="numpy")
def log(x):
    """Natural logarithm of a positive, normal float32 to about 2 units in the last place."""
    bits = bits_of_float32(x)
    exponent = np.int32((bits >> np.int32(23)) - np.int32(126))
    mantissa = float32_of_bits(np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)))
    low = mantissa < _SQRT_HALF
    e = np.float32(exponent) - (np.float32(1.0) if low else np.float32(0.0))
    f = mantissa + (mantissa if low else np.float32(0.0)) - np.float32(1.0)
    z = f * f
    p = np.float32(7.0376836292e-2)
    p = p * f - np.float32(1.1514610310e-1)
    p = p * f + np.float32(1.1676998740e-1)
    p = p * f - np.float32(1.2420140846e-1)
    p = p * f + np.float32(1.4249322787e-1)
    p = p * f - np.float32(1.6668057665e-1)
    p = p * f + np.float32(2.0000714765e-1)
    p = p * f - np.float32(2.4999993993e-1)
    p = p * f + np.float32(3.3333331174e-1)
    p = p * f * z + e * _LN2_LOW - np.float32(0.5) * z
    return f + p + e * _LN2_HIGH


@njit(inline="always", error_model="numpy")
def silu(x):
    """x * sigmoid(x)."""
    return x / (np.float32(1.0) + exp(-x))
