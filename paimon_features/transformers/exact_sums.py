"""Exact sums of floats: identical bits for any partition and order of the rows.

Every float64 is an integer multiple of 2**-1074, so a sum is a Python integer in that unit.
Mantissas of equal exponent are added in NumPy first, in two halves that cannot overflow
(Kulisch's long accumulator, one per group).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats

UNIT_EXPONENT = -1074
LARGEST = 1e150
"""Squares of larger values exceed float64."""

_HALF = 27


def exact_sums(values: Floats, groups: npt.NDArray[np.int64], count: int) -> list[int]:
    """Return the sum of each group in units of 2**-1074; ``groups`` are 0 to count - 1.

    >>> sums = exact_sums(np.array([1e100, 1.0, -1e100]), np.zeros(3, np.int64), 1)
    >>> as_float(sums[0])
    1.0
    """
    out = [0] * count
    for start in range(0, len(values), 1 << 24):  # keeps sums of halves below 2**53
        part = slice(start, start + (1 << 24))
        mantissas, exponents = np.frexp(values[part])
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        exponents = exponents.astype(np.int64) - 53
        keys = groups[part] * 4096 + (exponents + 2048)
        distinct, where = np.unique(keys, return_inverse=True)
        high = np.bincount(where, (whole >> _HALF).astype(np.float64), len(distinct))
        low = np.bincount(where, (whole & ((1 << _HALF) - 1)).astype(np.float64), len(distinct))
        for key, upper, lower in zip(distinct.tolist(), high.tolist(), low.tolist(), strict=True):
            shift = key % 4096 - 2048 - UNIT_EXPONENT
            total = (int(upper) << _HALF) + int(lower)
            # only zeros are shifted out: no float64 has digits below the unit
            out[key // 4096] += total << shift if shift >= 0 else total >> -shift
    return out


def exact_squares(values: Floats, groups: npt.NDArray[np.int64], count: int) -> list[int]:
    """Return the sum of squares of each group (squares below 2**-1022 are rounded)."""
    # Veltkamp's splitting and Dekker's product: value * value == square + rest
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    low = values - high
    square = values * values
    rest = low * low - ((square - high * high) - 2.0 * high * low)
    pairs = zip(exact_sums(square, groups, count), exact_sums(rest, groups, count), strict=True)
    return [a + b for a, b in pairs]


def as_float(total: int, count: int = 1) -> float:
    """Return a sum divided by ``count``, rounded once."""
    return total / (count << -UNIT_EXPONENT)


def spread(total: int, squares: int, count: int) -> float:
    """Return the sum of squared deviations from the mean of ``count`` values, rounded once."""
    if not count:
        return 0.0
    unit = -UNIT_EXPONENT
    return max((squares * count << unit) - total * total, 0) / (count << 2 * unit)


def to_text(total: int) -> str:
    """Format a sum for parameters: a hexadecimal integer and the power of two that scales it.

    >>> to_text(exact_sums(np.array([0.75]), np.zeros(1, np.int64), 1)[0])
    '0x3p-2'
    >>> from_text("0x3p-2") == 3 << 1072
    True
    """
    zeros = (total & -total).bit_length() - 1 if total else -UNIT_EXPONENT
    return f"{total >> zeros:#x}p{zeros + UNIT_EXPONENT}"


def from_text(text: str) -> int:
    """Return the inverse of ``to_text``; TransformError for other strings."""
    whole, separator, power = text.partition("p")
    try:
        shift = int(power) - UNIT_EXPONENT
        if not separator or shift < 0:
            raise ValueError
        return int(whole, 16) << shift
    except ValueError:
        raise TransformError(f"{text!r} is not a sum such as '0x3p-2'") from None
