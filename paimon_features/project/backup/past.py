"""Set a restored project back to a point in time.

Only a copy is set back, so nothing that anybody reads is lost. Every table is rolled back to the
snapshot that was its newest at that time, retained or tagged; all targets are looked up before the
first table changes. Tiles then contain the events that their job had read by then. Their job cannot
continue, because its checkpoint is of a later time: they are computed again, or only read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

from paimon_features.core.errors import SnapshotExpiredError, UnknownNameError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.metadata.consumers import consumers, delete_consumer
from paimon_features.lake.metadata.rollback import roll_back_table
from paimon_features.lake.metadata.snapshots import snapshot_as_of, tagged
from paimon_features.lake.metadata.tags import delete_tag
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.project import Project


def set_back(
    project: Project, time_ms: int, on_message: OnMessage = ignore_message
) -> dict[str, int | None]:
    """Set all tables of a restored project back to a time, UTC ms.

    Returns the snapshot of each table that changed, None for one that had no commit then. Files
    that were ingested later are no longer recorded as ingested. Registered definitions stay as
    they are.

    Raises
    ------
    SnapshotExpiredError
        If a table's snapshot of that time is gone; nothing has changed then.
    """
    lake = project.lake
    targets = _targets(lake, time_ms)
    with ExitStack() as leases:
        for table in targets:
            leases.enter_context(acquire(lake, table, purpose="set it back"))
        for record in _generations(lake):
            if record.table in targets:
                # first: online records and pins of the later time are not those of this one
                raised = record.incarnation + 1
                generations.update(lake, record.view, record.generation, incarnation=raised)
        for table, snapshot in targets.items():
            _set_back(lake, table, snapshot)
            state = "empty" if snapshot is None else f"snapshot {snapshot}"
            on_message(f"{table}: set back to {state}")
        for source in project.definitions.sources.values():
            if source.table in targets and lake.exists(source.table):
                files = IngestLedger(lake, source).forget_uncommitted()
                if files:
                    on_message(f"{source.name}: not ingested any more: {', '.join(files)}")
    return targets


def _generations(lake: Lake) -> Iterator[GenerationRecord]:
    for view in generations.views(lake):
        yield from generations.load(lake, view)


def _targets(lake: Lake, time_ms: int) -> dict[str, int | None]:
    targets: dict[str, int | None] = {}
    gone = []
    for table in lake.list():
        try:
            newest = latest_snapshot(lake, table)
            if newest is None or newest.time_ms <= time_ms or table == "registry":
                continue
            snapshot = snapshot_as_of(lake, table, time_ms)
            targets[table] = None if snapshot is None else snapshot.id
        except UnknownNameError:  # dropped meanwhile
            continue
        except SnapshotExpiredError as error:
            gone.append(str(error))
    if gone:
        raise SnapshotExpiredError(
            f"{len(gone)} tables cannot be set back to {time_ms} ms: {gone[0]}"
        )
    return targets


def _set_back(lake: Lake, table: str, snapshot: int | None) -> None:
    first = 0 if snapshot is None else snapshot
    for name, following in consumers(lake, table).items():
        if following > first + 1:
            delete_consumer(lake, table, name)
    for name, described in tagged(lake, table).items():
        if described.id > first:
            delete_tag(lake, table, name)
    if snapshot is None:
        with Overwrite(lake, table, f"set-back-{uuid.uuid4()}") as overwrite:
            overwrite.empty()
            overwrite.commit()
        return
    with commit_lock(lake, table, f"rolling back table {table!r}"):
        roll_back_table(lake, table, snapshot)
