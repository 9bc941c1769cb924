"""Which events the tiles of a generation contain, so that both are read at one cut.

A tile table contains the events up to the position of its job, and a read adds raw events where a
window is cut within a tile. Events that the job has not read yet must not be added: the same events
are missing in all other tiles. The positions are in the generation's record and its consumer::

    events     1   2   3   4   5   6        newest
    backfill   --------^                    handover_snapshot 3: tiles and heads are read at 3
    stream             ----^                consumer at 5: tiles and heads are read at 4

A consumer moves on when Flink has completed a checkpoint. While a stream runs, its tiles may
contain a part of what follows: of the snapshot that it is reading, and of a checkpoint that is just
being committed.
"""

from __future__ import annotations

from paimon_features.core.errors import GenerationError, SnapshotExpiredError, UnfilledError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    delete_consumer,
    following,
    register_consumer,
)
from paimon_features.lake.metadata.snapshots import (
    Snapshot,
    earliest_snapshot_id,
    latest_snapshot,
    read_snapshot_file,
    snapshot,
    snapshot_as_of,
)
from paimon_features.lake.side_folder.generations import GenerationRecord

COUNTED = 100
"""Snapshots after a position whose kinds are read to count commits; of more, the numbers count."""


def position(lake: Lake, record: GenerationRecord) -> int | None:
    """Return the events snapshot up to which the generation's tiles contain all additions.

    0 stands for none, None for a generation without a record of its job.
    """
    backfilled = record.handover_snapshot if record.backfilled else None
    if record.job is None or not record.is_streamed:
        return backfilled
    held = following(lake, record.job["events"], record.consumer)
    return backfilled if held is None else max(held - 1, backfilled or 0)


def check_filled(lake: Lake, record: GenerationRecord, events: str | None = None) -> None:
    """Raise UnfilledError unless the tiles of all events up to a position were computed.

    That is known from the generation's record, which does not expire, unlike the snapshots of its
    tables: a backfill of a source without events leaves nothing else. With ``events``, the name of
    its events table, no tiles are complete as long as there were no events.
    """
    if record.backfilled or (record.is_streamed and _has_read_all(lake, record)):
        return
    # without a record of a job, its rows were written by something else
    if record.job is None and latest_snapshot(lake, record.table) is not None:
        return
    if events is not None and not (lake.exists(events) and latest_snapshot(lake, events)):
        return
    raise unfilled(record, "its tiles were never computed" + _unfinished(record))


def _has_read_all(lake: Lake, record: GenerationRecord) -> bool:
    """Return True if a stream has read what was there when it started."""
    if record.first_scan is None:  # it started after a backfill, or in an earlier release
        return True
    reached = position(lake, record)
    if reached is None:  # the consumer was deleted; a checkpoint follows the first read
        return record.resume_path is not None or record.last_committed_identifier is not None
    return reached >= record.first_scan


def _unfinished(record: GenerationRecord) -> str:
    if record.is_streamed:
        return f" completely: its job has not read all of snapshot {record.first_scan} yet"
    if record.job is not None:
        return ": its last job did not end"
    return ""


def unfilled(record: GenerationRecord, reason: str) -> UnfilledError:
    """Return the error for tiles that are absent, which names the commands that compute them."""
    view = record.view
    return UnfilledError(
        f"feature view {view!r}: generation {record.generation} ({record.table}) cannot be read: "
        f"{reason}. 'paimon-features backfill {view}' computes the tiles of all events, "
        f"'paimon-features submit {view}' by a stream, which then goes on"
    )


def consumed_events(
    lake: Lake, record: GenerationRecord, tiles: Snapshot | None, newest: Snapshot, table: str
) -> Snapshot | None:
    """Return the snapshot of the events ``table`` that has the events which the tiles contain.

    ``newest`` is the newest one that may be read. None stands for no events at all.

    Raises
    ------
    SnapshotExpiredError
        If it is gone.
    GenerationError
        If the events table is not the one that the tiles were computed from.
    """
    reached = _position_at(lake, record, tiles, table)
    if reached is None or reached >= newest.id:
        return newest
    _check_same_events(lake, record, table)
    consumed = None
    for number in range(reached + 1, newest.id + 1):
        later = read_snapshot_file(lake, f"{lake.path(table)}/snapshot", number)
        if later is None or later.kind == "APPEND":
            break
        consumed = later  # compaction and deletion: the same events, or fewer
    if consumed is not None or reached == 0:
        return consumed
    try:
        return snapshot(lake, table, reached)
    except SnapshotExpiredError as error:
        view = record.view
        error.add_note(
            f"the tiles of feature view {view!r} contain the events up to this snapshot, and its "
            f"tile job is behind: 'paimon-features submit {view} --bounded' reads the others, "
            f"'paimon-features backfill {view} --rebuild' computes all tiles again"
        )
        raise


def _check_same_events(lake: Lake, record: GenerationRecord, table: str) -> None:
    mark = record.events_history
    if mark is not None and not table_history.continues(
        lake, table, mark, record.handover_snapshot or 0
    ):
        raise GenerationError(
            f"the events of feature view {record.view!r} were dropped and created again, or rolled "
            f"back, since the tiles of generation {record.generation} were computed: "
            f"'paimon-features backfill {record.view} --rebuild' computes all tiles from the "
            "present events"
        )


def _position_at(
    lake: Lake, record: GenerationRecord, tiles: Snapshot | None, table: str
) -> int | None:
    """Return the position of the tiles at a snapshot, which may be an earlier one."""
    reached = position(lake, record)
    if reached is None or not record.is_streamed or tiles is None:
        return reached
    if record.backfill_snapshot is not None and tiles.id <= record.backfill_snapshot:
        return record.handover_snapshot
    newest = latest_snapshot(lake, record.table)
    if newest is None or not _appended(lake, record.table, tiles.id, newest):
        return reached
    # an event is committed before its tile
    before = snapshot_as_of(lake, table, tiles.time_ms)
    return min(reached, 0 if before is None else before.id)


def appended_after(lake: Lake, table: str, after: Snapshot | None, newest: Snapshot | None) -> int:
    """Return how many commits have added rows after a snapshot, up to ``newest``."""
    return 0 if newest is None else _appended(lake, table, 0 if after is None else after.id, newest)


def not_consumed(
    lake: Lake,
    record: GenerationRecord,
    tiles: Snapshot | None,
    newest: Snapshot | None,
    table: str,
) -> int:
    """Return how many commits of events the tiles at a snapshot do not contain, up to
    ``newest``."""
    reached = None if newest is None else _position_at(lake, record, tiles, table)
    return 0 if newest is None or reached is None else _appended(lake, table, reached, newest)


def _appended(lake: Lake, table: str, after: int, newest: Snapshot) -> int:
    first = max(after + 1, earliest_snapshot_id(lake, table) or 1)
    expired = first - after - 1
    if newest.id - first >= COUNTED:
        return newest.id - after
    folder = f"{lake.path(table)}/snapshot"
    snapshots = (read_snapshot_file(lake, folder, n) for n in range(first, newest.id + 1))
    return expired + sum(one is None or one.kind == "APPEND" for one in snapshots)


def hold_position(lake: Lake, record: GenerationRecord) -> None:
    """Retain the events snapshot at which an idle generation is read, until its job runs again."""
    reached = position(lake, record)
    if reached is not None and record.job is not None and reached >= 1:
        table = record.job["events"]
        if reached >= (earliest_snapshot_id(lake, table) or 1):
            register_consumer(lake, table, record.read_consumer, reached)


def release_older_events(lake: Lake, record: GenerationRecord) -> None:
    """Let an idle generation retain the newest events in place of older ones.

    For the end of a rewrite of events, all of which its tiles contain.
    """
    if record.job is None or following(lake, record.job["events"], record.read_consumer) is None:
        return
    newest = latest_snapshot(lake, record.job["events"])
    if newest is not None:
        advance_consumer(lake, record.job["events"], record.read_consumer, newest.id)


def release_position(lake: Lake, record: GenerationRecord, table: str) -> None:
    """Release what ``hold_position`` retains; harmless when repeated."""
    delete_consumer(lake, table, record.read_consumer)
