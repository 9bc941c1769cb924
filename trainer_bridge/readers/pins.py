"""Which snapshot a reader is pinned to."""

from __future__ import annotations

from paimon_features.core.errors import ConfigurationError, TableError, UnknownNameError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import (
    Snapshot,
    SnapshotRef,
    latest_snapshot,
    pinned,
    snapshot_as_of,
    tagged,
)


def pinned_snapshot(
    lake: Lake,
    table: str,
    snapshot_id: SnapshotRef | None = None,
    tag: str | None = None,
    as_of_ms: int | None = None,
) -> Snapshot:
    """Return the given snapshot, that of a tag, the newest at a time, or the newest.

    Raises
    ------
    ConfigurationError
        If more than one is given.
    UnknownNameError
        For an unknown tag or table; names those that exist.
    TableError
        If nothing had been committed by then.
    SnapshotExpiredError
        If the given snapshot, or that of the time, is gone, or the number is ambiguous because
        the table has used it before.
    """
    given = {"snapshot_id": snapshot_id, "tag": tag, "as_of_ms": as_of_ms}
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigurationError(f"{' and '.join(named)}: expected one of them, or none")
    if snapshot_id is not None:
        return pinned(lake, table, snapshot_id)
    if tag is not None:
        tags = tagged(lake, table)
        if tag not in tags:
            raise UnknownNameError.of("tag", tag, tags, f"table {table!r}")
        return tags[tag]
    if as_of_ms is not None:
        match = snapshot_as_of(lake, table, as_of_ms)
        if match is None:
            raise TableError(f"table {table!r} had no commit yet at {as_of_ms} ms (UTC)")
        return match
    newest = latest_snapshot(lake, table)
    if newest is None:
        raise TableError(f"table {table!r} has no rows yet: nothing was committed to it")
    return newest
