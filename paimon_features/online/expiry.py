"""When a record leaves the online store by itself, and which reads that could make wrong.

A record leaves ``forget_after_ms`` after it was last written. By then all its events are older
than any window of a read at the clock. A read of a time long gone (a replay) is another matter:
it could miss what has left, so it is refused unless nothing can have left yet. The clocks of
the hosts may differ by up to an hour.
"""

from __future__ import annotations

from paimon_features.definitions import CompiledView
from paimon_features.windows import DAY_MS, HOUR_MS

READ_BEHIND_MS = DAY_MS
"""How far before the clock a read is answered although records may have left."""


def forget_after_ms(view: CompiledView) -> int | None:
    """How long after its last write a record is kept; None: for ever (a lifetime window)."""
    reach = view.longest_ms
    if reach is None:
        return None
    if view.ttl_ms is not None:
        # it counts from the horizon, which lies no further back than the end of any window
        reach = max(reach, view.ttl_ms + min(window.lag_ms for window in view.windows))
    return reach + view.source.max_skew_ms + READ_BEHIND_MS + HOUR_MS


def may_miss_records(view: CompiledView, as_of_ms: int, clock_ms: int, built_ms: int) -> bool:
    """Whether a read at ``as_of_ms`` could miss a record that has left the store.

    ``built_ms`` is when the building of the epoch began: the first write came later.
    """
    kept_ms = forget_after_ms(view)
    if kept_ms is None:
        return False
    return clock_ms >= built_ms + kept_ms - HOUR_MS and as_of_ms < clock_ms - READ_BEHIND_MS
