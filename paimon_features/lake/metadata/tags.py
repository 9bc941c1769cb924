"""Tags: names that keep a snapshot readable beyond its expiry."""

from __future__ import annotations

from typing import Any

from paimon_features.core.errors import TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import expired, snapshot_ids, tagged
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.table_folders import lock_path


def create_tag(lake: Lake, name: str, tag: str, snapshot_id: int) -> None:
    """Tag a snapshot of a table; idempotent.

    Raises
    ------
    TableError
        If the tag exists for another snapshot.
    SnapshotExpiredError
        If the snapshot does not exist.
    """
    with locked(lock_path(lake, name), f"tagging table {name!r}"):
        tags = tagged(lake, name)
        existing = tags.get(tag)
        if existing is not None:
            if existing.id != snapshot_id:
                raise TableError(
                    f"table {name!r}: the tag {tag!r} exists for snapshot {existing.id}, "
                    f"not {snapshot_id}; delete the tag first"
                )
            return
        table: Any = lake.table(name)
        if snapshot_id in snapshot_ids(lake, name):
            snapshot = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
        else:
            other = next((t for t, s in tags.items() if s.id == snapshot_id), None)
            if other is None:
                raise expired(lake, name, snapshot_id)
            snapshot = table.tag_manager().get_or_throw(other).trim_to_snapshot()
        table.tag_manager().create_tag(snapshot, tag, False, None)


def training_tag(target: str, number: int) -> str:
    """Return the tag of one of the snapshots that a training set has read of a table.

    >>> training_tag("training_churn", 0), training_tag("training_churn", 1)
    ('training_churn', 'training_churn-1')
    """
    return f"{target}-{number}" if number else target


def training_tags(lake: Lake, name: str, target: str) -> list[str]:
    """Return the tags of a table by which the training set ``target`` retains what it has read."""
    tags = tagged(lake, name) if lake.exists(name) else ()
    return [tag for tag in tags if tag == target or tag.startswith(f"{target}-")]


def delete_tag(lake: Lake, name: str, tag: str) -> None:
    """Delete a tag, if it exists."""
    if lake.exists(name):
        with locked(lock_path(lake, name), f"deleting a tag of table {name!r}"):
            if tag in tagged(lake, name):  # pypaimon prints a line if it does not exist
                lake.table(name).delete_tag(tag)
