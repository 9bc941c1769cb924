"""The sums of an all-reduced feedback edge, in plain loops."""

from __future__ import annotations

from collections.abc import Sequence


def all_reduced(parts: Sequence[Sequence[Sequence[float]]]) -> list[float] | None:
    """Return the sum of an epoch from the records of each subtask; ``None`` without a record.

    Each number is added up in the order of the subtasks, and of the records in a subtask.

    >>> all_reduced([[[1.0, 2.0]], [], [[0.5, 0.5], [1.0, 1.0]]])
    [2.5, 3.5]
    """
    records = [record for subtask in parts for record in subtask]
    if not records:
        return None
    sums = list(records[0])
    for record in records[1:]:
        for number, value in enumerate(record):
            sums[number] = sums[number] + value
    return sums
