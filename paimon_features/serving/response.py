"""What an online read answers: values, a status for each of them, and how fresh they are."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


class Status(enum.IntEnum):
    """What a value is worth.

    PRESENT: right as of the applied snapshot. STALE: the same, but the store has been behind
    the tile table for longer than the view's ``max_staleness``. EXPIRED: the entity's newest
    event is older than the view's ``ttl``; null. MISSING: no event within any window; null.
    ILL_CONDITIONED: a value exists but its sums cannot tell it to six digits, or it left its
    type on the way (an interaction that overflows); null.

    The status of an interaction is the worst of the features that it is made of, in this order;
    its value is what its expression makes of theirs.
    """

    PRESENT = 0
    STALE = 1
    EXPIRED = 2
    MISSING = 3
    ILL_CONDITIONED = 4


@functools.cache
def status_names() -> pa.Array:
    """The name of each status at the place of its number."""
    return pa.array([status.name for status in Status])


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh one view's values are: the worst of the buckets that the request touched.

    ``applied_snapshot`` is the snapshot of the tile table that every value includes,
    ``commit_time_ms`` when it was committed, ``event_time_high_ms`` the newest event time
    applied (None: no event yet). ``current_ms`` is the newest time at which the materializer
    knew the store to hold all that the table held: it moves on while the source is idle, and
    stands still when the materializer is dead or behind. ``stale`` says that ``current_ms`` is
    further back than the view's ``max_staleness``.
    """

    applied_snapshot: int
    commit_time_ms: int
    event_time_high_ms: int | None
    current_ms: int
    stale: bool


@dataclass(frozen=True)
class OnlineResponse:
    """Features of some entities at ``q_ms``; rows are in the order of the request.

    ``table`` has the entity keys and then the features, ``statuses`` the same features with
    their status names; a feature that two views have is called ``<view>__<feature>``.
    ``event_times`` has per view the newest event time of each entity (UTC ms), null where none
    is known, and ``freshness`` is per view.
    """

    q_ms: int
    table: pa.Table
    statuses: pa.Table
    event_times: Mapping[str, pa.Array]
    freshness: Mapping[str, Freshness]

    @property
    def features(self) -> list[str]:
        """The names of the feature columns, in the order of the request."""
        names: list[str] = self.statuses.column_names
        return names

    def to_pydict(self) -> dict[str, list[Any]]:
        """The values as lists by column name, entity keys first."""
        values: dict[str, list[Any]] = self.table.to_pydict()
        return values

    def to_pylist(self) -> list[dict[str, Any]]:
        """The values as one dictionary per entity."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The table, for pandas, Polars and whatever else reads Arrow streams."""
        return self.table.__arrow_c_stream__(requested_schema)
