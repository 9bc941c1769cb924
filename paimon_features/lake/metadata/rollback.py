"""Roll a table back to an earlier snapshot.

A rollback reuses snapshot ids, so the generation's incarnation is incremented, by which others
detect it.
"""

from __future__ import annotations

from paimon_features.core.errors import TableError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import consumers, reset_consumer
from paimon_features.lake.metadata.snapshots import latest_snapshot, snapshot, snapshot_ids, tagged
from paimon_features.lake.metadata.table_history import Removal
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord

AUTOMATIC_TAG_LENGTH = len("2011-12-09 10")
"""The length of the names of Paimon's hourly tags, which pin nothing."""


def pins_above(lake: Lake, name: str, snapshot_id: int) -> list[str]:
    """Tags and consumers whose snapshots a rollback to ``snapshot_id`` would remove."""
    tags = [
        f"tag {tag!r} (snapshot {s.id})"
        for tag, s in tagged(lake, name).items()
        if s.id > snapshot_id and not is_automatic(tag)
    ]
    held = [
        f"consumer {consumer!r} (has read up to {following - 1})"
        for consumer, following in sorted(consumers(lake, name).items())
        if following > snapshot_id + 1
    ]
    return tags + held


def rollback(
    lake: Lake, record: GenerationRecord, snapshot_id: int, release: tuple[str, ...] = ()
) -> GenerationRecord:
    """Roll a generation's table back; return its record with the next incarnation.

    The caller must own the table. ``release`` are consumers that may be moved back (the
    materializer's, which rebuilds for a new incarnation). The incarnation is written first: after
    a crash readers may rebuild unnecessarily, but never miss a rollback.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot does not exist.
    TableError
        If a tag or consumer pins a later one, which the message names.
    """
    name = record.table
    snapshot(lake, name, snapshot_id)
    held = [p for p in pins_above(lake, name, snapshot_id) if not _released(p, release)]
    if held:
        raise TableError(
            f"table {name!r} cannot be rolled back to snapshot {snapshot_id}: later ones are "
            f"pinned by {', '.join(held)}. Delete these pins first if they are no longer needed"
        )
    with commit_lock(lake, name, f"rolling back table {name!r}"):
        updated = generations.update(
            lake, record.view, record.generation, incarnation=record.incarnation + 1
        )
        roll_back_table(lake, name, snapshot_id)
        for consumer, following in consumers(lake, name).items():
            if following > snapshot_id + 1:
                reset_consumer(lake, name, consumer, snapshot_id + 1)
    return updated


def roll_back_table(lake: Lake, name: str, snapshot_id: int) -> None:
    """Roll a table back and record which snapshots it loses. The caller holds the table's lock.

    Recorded first, for the same reason.
    """
    newest = latest_snapshot(lake, name)
    if newest is None or newest.id == snapshot_id:
        return
    if snapshot_id + 1 in snapshot_ids(lake, name):
        from_ms = snapshot(lake, name, snapshot_id + 1).time_ms
    else:  # expired, where a tag retains the one to roll back to
        from_ms = snapshot(lake, name, snapshot_id).time_ms + 1
    how = f"rolled back to snapshot {snapshot_id}"
    table_history.record_removal(
        lake, name, Removal(how, from_ms, now_ms(), snapshot_id + 1, newest.id)
    )
    if lake.rest_tables is not None:
        lake.rest_tables.roll_back(name, snapshot_id)
    else:
        lake.table(name).rollback_to(snapshot_id)


def _released(pin: str, release: tuple[str, ...]) -> bool:
    return any(pin.startswith(f"consumer {consumer!r} ") for consumer in release)


def is_automatic(tag: str) -> bool:
    """Return True if a tag has a name of Paimon's hourly tags.

    >>> is_automatic("2011-12-09 10"), is_automatic("training_churn")
    (True, False)
    """
    return len(tag) == AUTOMATIC_TAG_LENGTH and tag[:4].isdigit() and tag[4] == "-"
