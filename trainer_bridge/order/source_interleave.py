"""Which of several sources a row of a mixture comes from, by position: a pure function.

::

    shares 2 : 1      one pattern   A B A
    class p mod C     0   1   2     C classes, here 3, each begins at another slot of the pattern
    turn p div C  0   B   A   A
                  1   A   B   A
                  2   A   A   B     one round: each class has had the complete pattern
    source position   of the same class: s mod C = p mod C

A position keeps its class, so it is the same modulo each world size that divides C as the position
in its source: a rank of such a world size reads complete streams of each source, as it does without
a mixture. The reference implementation is
``reference_mix`` in ``tests/reference/order.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Ints

MOST_SLOTS = 1_000
_GOLDEN = 0x9E3779B97F4A7C15


def shares_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Integers in the ratio of the weights, to a thousandth of their sum.

    >>> shares_of([0.7, 0.3]), shares_of([2, 1, 1]), shares_of([0.123, 0.877])
    ((7, 3), (2, 1, 1), (123, 877))
    """
    if any(not 0 < weight < float("inf") for weight in weights):
        raise ConfigurationError(f"weights={list(weights)}: expected finite numbers above 0")
    total = sum(Fraction(weight) for weight in weights)
    exact = [Fraction(weight) / total for weight in weights]
    near = [share.limit_denominator(MOST_SLOTS) for share in exact]
    slots = lcm(*(share.denominator for share in near))
    fits = all(abs(a - b) < 1e-9 for a, b in zip(near, exact, strict=True))
    if slots > MOST_SLOTS or not fits:
        slots, near = MOST_SLOTS, exact
    counts = [int(share * slots) for share in near]
    rest = sorted(range(len(near)), key=lambda i: counts[i] - near[i] * slots)
    for i in rest[: slots - sum(counts)]:  # largest remainder
        counts[i] += 1
    if not all(counts):
        raise ConfigurationError(
            f"weights={list(weights)}: a share below 1/{MOST_SLOTS} of the sum would never occur"
        )
    common = gcd(*counts)
    return tuple(share // common for share in counts)


@dataclass(frozen=True)
class SourceInterleave:
    """Which source, and which of its positions, each position of a mixture maps to.

    Position p is of class ``p mod classes``. Each class goes through one pattern of sources, in
    which source i occurs ``shares[i]`` times, evenly spread; the classes begin at different slots
    of it, so that every stretch of positions, and every rank's part of it, is mixed.

    >>> source, position = SourceInterleave((2, 1), classes=2).split(np.arange(6))
    >>> source.tolist(), position.tolist()
    ([1, 0, 0, 1, 0, 0], [0, 1, 0, 1, 2, 3])
    """

    shares: tuple[int, ...]
    classes: int
    _pattern: Ints = field(init=False, repr=False, compare=False)
    _before: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slots = [
            (Fraction(2 * k + 1, 2 * share), i)
            for i, share in enumerate(self.shares)
            for k in range(share)
        ]
        pattern = np.array([i for _, i in sorted(slots)], dtype=np.int64)
        # axes: (slot, source): how often each source comes before the slot
        counts = np.zeros((len(pattern) + 1, len(self.shares)), dtype=np.int64)
        np.cumsum(pattern[:, None] == np.arange(len(self.shares)), axis=0, out=counts[1:])
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "_before", counts[:-1])

    @property
    def slots(self) -> int:
        return len(self._pattern)

    @property
    def round_rows(self) -> int:
        """Number of positions after which each class has had the complete pattern."""
        return self.slots * self.classes

    def split(self, positions: Ints) -> tuple[Ints, Ints]:
        """Source and its position for each position of the mixture, in time O(positions)."""
        turn, of_class = np.divmod(positions, self.classes)
        rounds, slot = np.divmod(turn, self.slots)
        first = self._first_slot(of_class)
        index = (first + slot) % self.slots
        source = self._pattern[index]
        share = np.asarray(self.shares, dtype=np.int64)[source]
        seen = (self._before[index, source] - self._before[first, source]) % share
        return source, (rounds * share + seen) * self.classes + of_class

    def _first_slot(self, of_class: Ints) -> Ints:
        """Multiples of the golden ratio: evenly spread over any run and any step of classes."""
        golden = np.array([_GOLDEN], dtype=np.uint64)
        spread = ((of_class.astype(np.uint64) + np.uint64(1)) * golden) >> np.uint64(32)
        return ((spread * np.uint64(self.slots)) >> np.uint64(32)).astype(np.int64)
