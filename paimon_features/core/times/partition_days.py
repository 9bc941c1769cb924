"""How many days a partition of a table of events or tiles contains.

The partition column of such a table (``event_day``, ``tile_day``) is the first day of a span: the
day of a row, rounded down to a multiple of the table's ``partition_days``. Dense tables have a
partition a day, so that a read opens only the days that it needs; a long, sparse history would be
thousands of files with a few rows each, and has partitions of 8, 64 or 512 days. Each of these
numbers divides the next, so spans never overlap in part, also not with those of rollups::

    512 days  |======================================= ... ===|
     64 days  |===============|===============|======= ... ===|
      8 days  |=======|=======|=======|=======|======= ... ===|
      1 day   |-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|- ... -|-|

>>> first_day(15_050, 64), first_day(-1, 8)
(15040, -8)
"""

from __future__ import annotations

import numpy as np

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.array_types import Ints

PARTITION_DAYS = (1, 8, 64, 512)
"""The possible numbers of days, besides ``WHOLE_HISTORY``; each divides the next."""

WHOLE_HISTORY = 1 << 22
"""The number for ``"none"``: as many days as there are between the years 1 and 9999, and more.

Days from 1970 on are one partition, earlier ones another.
"""

FEW_PARTITIONS = 64
"""A history of that many days has daily partitions, whatever their size: they cost nothing."""

FULL_FILE_ROWS = 10_000
"""Rows of a file from which reading them takes as long as opening it: about a millisecond."""


_SEEN_EARLY = 0.75
"""The share of days that half of a sample has, if the events are in any order, and more."""


def first_day(day: int, partition_days: int) -> int:
    """Return the first day of the partition that contains ``day``; days since 1970."""
    return day // partition_days * partition_days


def first_days(days: Ints, partition_days: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return ``first_day`` of each of these days, in the type of a partition column."""
    return (days // partition_days * partition_days).astype(np.int32)


def choose_partition_days(events: int, days: Ints, files: int = 1, known: int = 1) -> int:
    """Return the number of days by the density of a history.

    ``days`` are the first days of the partitions of ``known`` days that have ``events``, in any
    order; ``files`` is the number of files of a partition, one for each bucket. The result is the
    least number that makes these files full, or the partitions few; 1 without events.

    >>> month, decade = np.arange(30), np.arange(3_270)
    >>> [choose_partition_days(12_000, days) for days in (month, decade)]
    [1, 64]
    >>> choose_partition_days(3_270 * 200_000, decade)
    1
    """
    for number in PARTITION_DAYS[:-1]:
        partitions = count_partitions(days, number, known)
        if partitions <= FEW_PARTITIONS or events >= FULL_FILE_ROWS * files * partitions:
            return number
    return PARTITION_DAYS[-1]


def sampled_partition_days(days: Ints, events: int) -> int:
    """Return the choice by the days of the first events of a history of about ``events``, in its
    order.

    If the events come in the order of their time, later days are not seen: those that are seen
    have the density of the history. In any other order, most days are seen soon, and have a part of
    their events.

    >>> in_order = np.repeat(np.arange(200), 1_000)
    >>> sampled_partition_days(in_order, 10_000_000)
    8
    >>> sampled_partition_days(np.tile(np.arange(200), 1_000), 10_000_000)
    1
    """
    distinct = np.unique(days)
    early = len(np.unique(days[: len(days) // 2]))
    in_order = early < _SEEN_EARLY * len(distinct)
    return choose_partition_days(len(days) if in_order else max(events, len(days)), distinct)


def count_partitions(days: Ints, number: int, known: int = 1) -> int:
    """Return how many partitions of ``number`` days a history has; see ``choose_partition_days``.

    An upper bound where ``known`` partitions would be divided.
    """
    return len(np.unique(days // number)) * max(known // number, 1)


def parse_partition_days(what: str, value: object) -> int | None:
    """Return the number of days of a definition's ``partition_days``; None if it is to be chosen.

    Raises
    ------
    DefinitionError
        If it is neither one of ``PARTITION_DAYS`` nor ``"none"``; ``what`` names the definition.
    """
    if value is None:
        return None
    if value == "none":
        return WHOLE_HISTORY
    if type(value) is int and value in PARTITION_DAYS:
        return value
    raise DefinitionError(
        f"{what}: partition_days={value!r}; expected {', '.join(map(str, PARTITION_DAYS))}, "
        "'none' for one partition, or None, which chooses by the density of the events"
    )


def partition_text(days: int) -> str:
    """Return what a partition contains, for messages.

    >>> partition_text(1), partition_text(64), partition_text(WHOLE_HISTORY)
    ('a partition a day', 'a partition for 64 days', 'one partition')
    """
    if days == WHOLE_HISTORY:
        return "one partition"
    return "a partition a day" if days == 1 else f"a partition for {days} days"
