"""How many days a partition of a view's tile table contains: as defined, or by the events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paimon_features.core.times.partition_days import (
    FEW_PARTITIONS,
    FULL_FILE_ROWS,
    choose_partition_days,
    count_partitions,
    partition_text,
)
from paimon_features.core.types.array_types import Ints
from paimon_features.definitions import CompiledView
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.specs import EVENT_DAY, TableSpec, tiles_spec

_MANY = 4 * FEW_PARTITIONS
"""Partitions from which advice is given for a table that has tiles."""
_LARGE_FILE_ROWS = 100 * FULL_FILE_ROWS
"""Rows of a file from which it is advised to divide its partition."""


@dataclass(frozen=True)
class PartitionChoice:
    """The days of a partition that suit a view's events.

    ``first_days`` are those of the partitions of ``known_days`` that have the ``events``.
    """

    days: int
    events: int
    first_days: Ints
    known_days: int
    buckets: int

    def __str__(self) -> str:
        return f"{partition_text(self.days)}: {self.events:,} events {self._when}"

    @property
    def _when(self) -> str:
        if self.known_days == 1:
            return f"on {len(self.first_days):,} days"
        return f"in {len(self.first_days):,} partitions of {self.known_days} days"

    def advises(self, actual: int) -> bool:
        """Return True if it is worth a rebuild of a table whose partitions contain ``actual``
        days."""
        partitions = count_partitions(self.first_days, actual, self.known_days)
        if self.days > actual:
            return partitions > _MANY
        rows = self.events / max(partitions * self.buckets, 1)
        return self.days < actual and rows > _LARGE_FILE_ROWS


def choose_partitions(lake: Lake, view: CompiledView) -> PartitionChoice:
    """Return the choice for a tile table that is filled now, from the newest snapshot of the
    events."""
    if view.partition_days is not None:
        none = np.zeros(0, np.int64)
        return PartitionChoice(view.partition_days, 0, none, 1, view.buckets)
    return partitions_for(lake, view.source.table, view.buckets)


def partitions_for(lake: Lake, table: str, buckets: int = 1) -> PartitionChoice:
    """Return the choice by the newest snapshot of an events table, for partitions of some
    buckets."""
    newest = latest_snapshot(lake, table) if lake.exists(table) else None
    events, first_days = 0, np.zeros(0, np.int64)
    if newest is not None:
        events, first_days = _events(lake, table, newest.id, newest.ref)
    current_days = table_options.partition_days(lake, table) if events else 1
    chosen = choose_partition_days(events, first_days, buckets, current_days)
    return PartitionChoice(chosen, events, first_days, current_days, buckets)


@lru_cache(maxsize=16)
def _events(lake: Lake, table: str, snapshot_id: int, ref: str) -> tuple[int, Ints]:
    """Return the number of events in a snapshot, and the first days of their partitions.

    Cached, because a plan needs it for each view of a source; ``ref`` names the commit, because a
    number can be used again.
    """
    files = live_files(lake, table, snapshot_id)
    starts = {days.start for file in files if (days := file.days(EVENT_DAY)) is not None}
    return sum(file.rows for file in files), np.array(sorted(starts), np.int64)


def tiles_table(view: CompiledView, generation: int, partition_days: int = 1) -> TableSpec:
    """Return the tile table of one generation of a view."""
    partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
    table = view.table(generation)
    return tiles_spec(table, view.keys, partials, view.buckets, partition_days)
