"""Where deleted rows can still be read: older snapshots and tags, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paimon_features.core.windows import parse_duration
from paimon_features.lake import Lake
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.metadata.snapshots import read_snapshot_file, snapshot_ids, tagged

_RETAINED = "snapshot.time-retained"
COMMIT_USER = "forget-"


@dataclass(frozen=True, slots=True)
class Remaining:
    """A table whose rows of before its newest deletion are still in older snapshots.

    ``snapshots`` counts those, the newest of which was replaced at ``replaced_ms``; the first
    'maintain' after ``until_ms`` (UTC) expires them, except what ``tags`` and ``consumers`` retain.
    """

    table: str
    snapshots: int
    replaced_ms: int
    until_ms: int
    tags: tuple[str, ...]
    consumers: tuple[str, ...]


def remaining(lake: Lake, tables: Sequence[str]) -> list[Remaining]:
    """Return what remains of the rows that were deleted from these tables."""
    remains = (_of(lake, table) for table in tables)
    return [one for one in remains if one is not None]


def _of(lake: Lake, table: str) -> Remaining | None:
    ids = snapshot_ids(lake, table)
    folder = f"{lake.path(table)}/snapshot"
    read = [read_snapshot_file(lake, folder, number) for number in ids]
    deletions = [s for s in read if s is not None and s.commit_user.startswith(COMMIT_USER)]
    if not deletions:
        return None
    newest = deletions[-1]
    older = [number for number in ids if number < newest.id]
    tags = tuple(name for name, s in tagged(lake, table).items() if s.id < newest.id)
    if not older and not tags:
        return None
    retained = lake.table(table).table_schema.options.get(_RETAINED, "1 h").replace(" ", "")
    held = tuple(n for n, first in sorted(consumers(lake, table).items()) if first < newest.id)
    return Remaining(
        table, len(older), newest.time_ms, newest.time_ms + parse_duration(retained), tags, held
    )
