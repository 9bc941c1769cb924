"""Keys of many permutations, vectorised."""

from __future__ import annotations

import numpy as np

from paimon_features.core.types.array_types import Ints, Words
from trainer_bridge.order.permutation import mix64

_GOLDEN = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)


def keys_of(key: int, *numbers: Ints) -> Words:
    """Return a 64-bit key per row of numbers (arrays of equal length); a pure function.

    >>> one, two = keys_of(7, np.array([1, 2]), np.array([5, 5]))
    >>> bool(one == keys_of(7, np.array([1]), np.array([5]))[0]), bool(one == two)
    (True, False)
    """
    words = np.array([key], dtype=np.uint64)
    for part in numbers:
        words = mix64(part.astype(np.uint64) * _GOLDEN + words)
    return words
