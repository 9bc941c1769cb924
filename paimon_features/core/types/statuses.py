"""The status of a feature value, one enumeration for online reads, offline reads and clients."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """How far a feature value can be relied on; a greater number is worse.

    PRESENT: correct as of the applied snapshot. STALE: the same, but the online store has lagged
    behind the tile table for longer than the view's ``max_staleness`` (online reads only).
    EXPIRED: the entity's newest event is older than the view's ``ttl``; the value is null.
    MISSING: no event within any window; the value is null. ILL_CONDITIONED: the sums leave fewer
    than about six correct digits, or a computation left its type (an interaction that overflows);
    the value is null.

    The status of an interaction or a transformed feature is the worst of its inputs'.
    """

    PRESENT = 0
    STALE = 1
    EXPIRED = 2
    MISSING = 3
    ILL_CONDITIONED = 4


STATUS_NAMES = tuple(status.name for status in Status)
"""The name of each status at the index of its number."""

FEAST_STATUS = {
    Status.PRESENT: "PRESENT",
    Status.STALE: "PRESENT",
    Status.EXPIRED: "OUTSIDE_MAX_AGE",
    Status.MISSING: "NOT_FOUND",
    Status.ILL_CONDITIONED: "NULL_VALUE",
}
"""Feast's name for each status."""

FEAST_STATUS_NAMES = ("PRESENT", "NULL_VALUE", "NOT_FOUND", "OUTSIDE_MAX_AGE")
"""Feast's names in the order of its ``FieldStatus``."""

STATUS_OF_FEAST = {
    FEAST_STATUS[status]: status.name for status in Status if status is not Status.STALE
}
"""The name of our status for each of Feast's; STALE cannot be recovered from PRESENT."""
