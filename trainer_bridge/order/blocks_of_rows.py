"""Which block each row is in, and where: rows sorted by their blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Ints


def by_block(numbers: Ints, first_rows: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the blocks of rows in their order: ``(block, offsets in it, places in numbers)``.

    Block ``k`` has the rows from ``first_rows[k]`` to ``first_rows[k + 1]`` (exclusive); every
    number has to be in one of them, else ValueError. Blocks without one are left out, and places
    ascend.

    >>> for block, offsets, places in by_block(np.array([7, 1, 8, 0]), np.array([0, 3, 7, 9])):
    ...     print(block, offsets.tolist(), places.tolist())
    0 [1, 0] [1, 3]
    2 [0, 1] [0, 2]
    """
    numbers = np.ascontiguousarray(numbers, np.int64)  # a sampler of somebody else drew them
    if not len(numbers):
        return
    if CORE is None:
        counts, offsets, places = _by_numpy(numbers, first_rows)
    else:
        counts = np.empty(len(first_rows) - 1, np.int64)
        offsets, places = np.empty_like(numbers), np.empty_like(numbers)
        CORE.group(numbers, first_rows, counts, offsets, places)
    stops = np.cumsum(counts)
    for block in np.flatnonzero(counts).tolist():
        low, high = stops[block] - counts[block], stops[block]
        yield block, offsets[low:high], places[low:high]


def _by_numpy(numbers: Ints, first_rows: Ints) -> tuple[Ints, Ints, Ints]:
    home = np.searchsorted(first_rows, numbers, side="right") - 1
    low = int(home.min())
    if low < 0 or int(home.max()) >= len(first_rows) - 1:
        raise ValueError("group: a row is in no block")
    # 16-bit numbers are sorted by a radix sort, ten times as fast as others
    small = home - low
    places = np.argsort(
        small.astype(np.uint16) if int(small.max()) < 1 << 16 else small, kind="stable"
    )
    sorted_home = home[places]
    return (
        np.bincount(sorted_home, minlength=len(first_rows) - 1),
        numbers[places] - first_rows[sorted_home],
        places,
    )
