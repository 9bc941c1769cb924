"""Sizes of tables and counts of rejected rows, from metadata.

The cost for a table is one read of the manifests of its newest snapshot; for a rejected table of
at most ``COUNTED_ROWS`` rows also two of its columns. Nothing is read again while a table has no
new snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.ingest.release import count_rejected
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.metadata.snapshots import Snapshot, snapshot_ids, tagged
from paimon_features.lake.reading.deltas import live_files

REJECTED_PREFIX = "rejected_"
COUNTED_ROWS = 100_000
"""Rejected tables with more rows are not counted by reason, which would read all of them."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The size of a table. ``files`` and ``bytes`` are those of the newest snapshot.

    ``rows`` are those in its files, before merging. ``oldest_snapshot`` and ``newest_snapshot``
    are None for a table without commits, all else is 0 then. ``error`` says why it cannot be read.
    """

    table: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    snapshots: int = 0
    tags: int = 0
    oldest_snapshot: int | None = None
    newest_snapshot: int | None = None
    newest_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedStatus:
    """The rows of a rejected table.

    ``held`` events wait for their time, ``released`` ones were held; ``rejected`` has the rest by
    reason. All three are None if the table has more than ``COUNTED_ROWS`` ``rows``.
    """

    table: str
    rows: int
    newest_ms: int | None
    rejected: dict[str, int] | None = None
    held: int | None = None
    released: int | None = None
    error: str | None = None


@dataclass
class TableReader:
    """Reads sizes and counts, and keeps them for as long as a table has no new snapshot."""

    lake: Lake
    _known: dict[tuple[str, str], tuple[str, object]] = field(default_factory=dict)

    def sizes(self) -> list[TableStatus]:
        """Return all tables, by name."""
        return [one for one in map(self._size, self.lake.list()) if one is not None]

    def rejected(self) -> list[RejectedStatus]:
        """Return all rejected tables, by name."""
        names = filter(_is_rejected, self.lake.list())
        return [one for one in map(self._rejected, names) if one is not None]

    def _size(self, name: str) -> TableStatus | None:
        """None if it was dropped meanwhile."""
        try:
            newest = latest_snapshot(self.lake, name)
            if newest is None:
                return TableStatus(name)
            at = newest.id
            files, size = self._cached("size", name, newest, lambda: _live(self.lake, name, at))
            ids = snapshot_ids(self.lake, name)
            return TableStatus(
                name,
                files,
                size,
                newest.total_records,
                len(ids),
                len(tagged(self.lake, name)),
                min(ids, default=newest.id),
                newest.id,
                newest.time_ms,
            )
        except (PaimonFeaturesError, OSError) as error:
            if not self.lake.exists(name):
                return None
            return TableStatus(name, error=str(error))

    def _rejected(self, name: str) -> RejectedStatus | None:
        """None if it was dropped meanwhile."""
        try:
            newest = latest_snapshot(self.lake, name)
            if newest is None:
                return RejectedStatus(name, 0, None, {}, 0, 0)
            rows, at = newest.total_records, newest.id
            if rows > COUNTED_ROWS:
                return RejectedStatus(name, rows, newest.time_ms)
            counts = self._cached(
                "rejected", name, newest, lambda: count_rejected(self.lake, name, at)
            )
            return RejectedStatus(
                name, rows, newest.time_ms, dict(counts.rejected), counts.held, counts.released
            )
        except (PaimonFeaturesError, OSError) as error:
            if not self.lake.exists(name):
                return None
            return RejectedStatus(name, 0, None, error=str(error))

    def _cached(self, what: str, name: str, newest: Snapshot, read: Callable[[], _Value]) -> _Value:
        cached = self._known.get((what, name))
        if cached is None or cached[0] != newest.ref:
            cached = (newest.ref, read())
            self._known[what, name] = cached
        return cached[1]  # type: ignore[return-value]


def _live(lake: Lake, name: str, snapshot_id: int) -> tuple[int, int]:
    files = live_files(lake, name, snapshot_id)
    return len(files), sum(file.size for file in files)


def _is_rejected(name: str) -> bool:
    return name.startswith(REJECTED_PREFIX)
