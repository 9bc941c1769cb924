"""How fresh the values of a read are, as servers and their clients see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Freshness:
    """The freshness of one view's values: the worst of the buckets that the request reads.

    ``applied_snapshot`` is the snapshot of the tile table that every value includes,
    ``commit_time_ms`` when it was committed. ``event_time_high_ms``, the high mark, is the newest
    event time applied (None: no event yet), and ``event_time_low_ms``, the low mark, the oldest of
    the buckets' newest event times (None: a bucket has no event yet). ``current_ms`` is the newest
    time at which the materializer knew the store to be up to date with the table: it advances while
    the source is idle, and stops when the materializer is dead or behind. ``stale``: ``current_ms``
    is further back than the view's ``max_staleness``. Times are UTC ms, of the server's clock.
    """

    applied_snapshot: int
    commit_time_ms: int
    event_time_low_ms: int | None
    event_time_high_ms: int | None
    current_ms: int
    stale: bool

    @staticmethod
    def worst(parts: Sequence[Freshness]) -> Freshness:
        """Return the worst of values that were read at different times, field by field."""
        if all(part is parts[0] for part in parts):
            return parts[0]
        lows = [p.event_time_low_ms for p in parts if p.event_time_low_ms is not None]
        highs = [p.event_time_high_ms for p in parts if p.event_time_high_ms is not None]
        return Freshness(
            applied_snapshot=min(part.applied_snapshot for part in parts),
            commit_time_ms=min(part.commit_time_ms for part in parts),
            event_time_low_ms=min(lows) if len(lows) == len(parts) else None,
            event_time_high_ms=max(highs, default=None),
            current_ms=min(part.current_ms for part in parts),
            stale=any(part.stale for part in parts),
        )
