"""Expiry of records in the online store, and the reads that expiry could make wrong.

A record expires ``expire_after_ms`` after its last write. By then all its events are older than
any window of a read at the current time. A read at a past time (a replay) could miss expired
records, so it is rejected unless no record can have expired yet. The clocks of the hosts may
differ by up to an hour.
"""

from __future__ import annotations

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import CompiledView

READ_BEHIND_MS = DAY_MS
"""How far behind the clock a read is accepted although records may have expired."""


def expire_after_ms(view: CompiledView) -> int | None:
    """Return the time from its last write to a record's expiry; None: never (a lifetime window)."""
    retention_ms = view.longest_ms
    if retention_ms is None:
        return None
    if view.ttl_ms is not None:
        # the ttl counts from the horizon, which is no earlier than the end of any window
        retention_ms = max(
            retention_ms, view.ttl_ms + min(window.lag_ms for window in view.windows)
        )
    return retention_ms + view.source.max_skew_ms + READ_BEHIND_MS + HOUR_MS


def may_miss_records(view: CompiledView, as_of_ms: int, clock_ms: int, built_ms: int) -> bool:
    """Return True if a read at ``as_of_ms`` could miss an expired record.

    ``built_ms`` is the time at which the build of the epoch started, before its first write.
    """
    kept_ms = expire_after_ms(view)
    if kept_ms is None:
        return False
    return clock_ms >= built_ms + kept_ms - HOUR_MS and as_of_ms < clock_ms - READ_BEHIND_MS
