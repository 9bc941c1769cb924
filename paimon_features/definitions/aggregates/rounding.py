"""Square roots of fractions of integers, rounded once to the nearest float.

``sqrt(numerator / denominator)`` rounds twice: the quotient, then its root. About one result of
eight is then not the float nearest to the root of the exact fraction.
"""

from __future__ import annotations

import math

import numpy as np

from paimon_features.core.types.array_types import Bools, Floats, Ints

_ROOT_BITS = 60
"""Least number of bits of an integer root: those of a float, one to round by, and some to spare."""
_SPLITTER = 2.0**27 + 1.0
_DOUBT = 2.0**-40
"""Relative error up to which a correction is trusted; it is computed to about 2^-50."""


def root_of_fraction(numerator: int, denominator: int) -> float:
    """Return the float nearest to ``sqrt(numerator / denominator)``.

    The numerator is not negative and the denominator positive. The root of the fraction times a
    power of 4 is an integer of at least 60 bits; its last bit is set where anything was cut off,
    so that the conversion to a float, the only rounding, goes to the right side.

    >>> root_of_fraction(9, 4), root_of_fraction(2, 1), root_of_fraction(0, 7)
    (1.5, 1.4142135623730951, 0.0)
    """
    if numerator == 0:
        return 0.0
    shift = max(2 * _ROOT_BITS - numerator.bit_length() + denominator.bit_length(), 0) // 2
    scaled, rest = divmod(numerator << 2 * shift, denominator)
    root = math.isqrt(scaled)
    if rest or root * root != scaled:
        root |= 1
    return math.ldexp(float(root), -shift)


def roots_of_fractions(numerators: Ints, denominators: Ints) -> Floats:
    """Return ``root_of_fraction`` of each pair; all integers below 2^53, denominators positive.

    The quotient's root in floats is off by at most two units in the last place; by how much follows
    from the remainder of the division and of the square, both exact (T. J. Dekker, "A
    floating-point technique for extending the available precision", 1971). Where the root lies so
    near the middle of two floats that this cannot decide, integers do.

    >>> roots_of_fractions(np.array([0, 2, 9]), np.array([5, 1, 4])).tolist()
    [0.0, 1.4142135623730951, 1.5]
    """
    above, below = numerators.astype(np.float64), denominators.astype(np.float64)
    quotient = above / below
    root = np.sqrt(quotient)
    product, product_rest = _product(quotient, below)
    square, square_rest = _product(root, root)
    rest = ((above - product) - product_rest) / below + ((quotient - square) - square_rest)
    correction = rest / np.where(root > 0, 2.0 * root, 1.0)
    roots: Floats = root + correction
    unsure: Bools = root + correction * (1.0 - _DOUBT) != root + correction * (1.0 + _DOUBT)
    for i in np.flatnonzero(unsure):
        roots[i] = root_of_fraction(int(numerators[i]), int(denominators[i]))
    return roots


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the float nearest to ``a * b`` and what it lacks; together they are exact."""
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    product = a * b
    lacks = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, lacks


def _halves(values: Floats) -> tuple[Floats, Floats]:
    """Return two floats of at most 26 bits each whose sum is the value."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high
