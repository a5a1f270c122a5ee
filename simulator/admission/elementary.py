"""exp, expm1 and log in plain arithmetic: a loop over independent numbers takes several of them at once.

A call of the library's takes one number at a time, and keeps the loop around it from taking more. Errors are 2 units
in the last place at most. Methods: fdlibm (Sun Microsystems, 1993).
"""

from __future__ import annotations

import math
from typing import Any

from numba import types
from numba.extending import intrinsic

from simulator.compilation import inlined

LOWEST, HIGHEST = -708.0, 709.0
"""Of x in exp(x); beyond them the result is that at the nearer one."""
_WHOLE = 6755399441055744.0
"""1.5 * 2^52: a number added to it is rounded to a whole one, whose bits are its lowest."""
_WHOLE_BITS = 0x4338000000000000
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ONE_BITS = 1023 << 52
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1.0 / math.factorial(k) for k in range(2, 14))
_L1, _L2, _L3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
_L4, _L5, _L6 = 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01
_L7 = 1.479819860511658591e-01


def _bits_of(context: Any, number: Any) -> Any:
    def cast(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], context.get_value_type(types.int64))

    return types.int64(types.float64), cast


def _number_of(context: Any, bits: Any) -> Any:
    def cast(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], context.get_value_type(types.float64))

    return types.float64(types.int64), cast


bits_of: Any = intrinsic(_bits_of)
number_of: Any = intrinsic(_number_of)


@inlined
def _divided(x: float) -> tuple[float, float]:
    """Return (r, 2^k) with exp(x) = 2^k exp(r), r being at most ln 2 / 2."""
    x = min(max(x, LOWEST), HIGHEST)
    whole = x * _LOG2_E + _WHOLE
    k = whole - _WHOLE
    return (x - k * _LN2_HIGH) - k * _LN2_LOW, number_of((bits_of(whole) << 52) + _ONE_BITS)


@inlined
def _near_zero(r: float) -> float:
    """Return exp(r) - 1 for an r of at most ln 2 / 2, by its series."""
    r2 = r * r
    r4 = r2 * r2
    low = (_E2 + r * _E3) + r2 * (_E4 + r * _E5)
    middle = (_E6 + r * _E7) + r2 * (_E8 + r * _E9)
    high = (_E10 + r * _E11) + r2 * (_E12 + r * _E13)
    return r + r2 * (low + r4 * (middle + r4 * high))


@inlined
def exp(x: float) -> float:
    """Return e to the x."""
    r, scale = _divided(x)
    return scale + scale * _near_zero(r)


@inlined
def expm1(x: float) -> float:
    """Return exp(x) - 1."""
    r, scale = _divided(x)
    return scale * _near_zero(r) + (scale - 1.0)


@inlined
def log(x: float) -> float:
    """Return the natural logarithm of a normal x > 0."""
    bits = bits_of(x)
    exponent = (bits - _ROOT_HALF_BITS) >> 52
    f = number_of(bits - (exponent << 52)) - 1.0
    k = number_of(exponent + _WHOLE_BITS) - _WHOLE
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    rest = w * (_L2 + w * (_L4 + w * _L6)) + z * (_L1 + w * (_L3 + w * (_L5 + w * _L7)))
    half = 0.5 * f * f
    value: float = k * _LN2_HIGH - ((half - (s * (half + rest) + k * _LN2_LOW)) - f)
    return value


ELEMENTARY = {"exp": exp, "expm1": expm1, "log": log}
