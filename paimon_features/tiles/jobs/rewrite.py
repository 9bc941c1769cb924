"""A generation filled with the tiles of another one that differs only in buckets or partitions.

Events need not be read again, and may have expired. The new generation continues exactly where the
old one stopped: from the same savepoint, which is a position in the events::

    events        1 ... 41 | 42 43 ...
    generation 1  ---------+ savepoint
    generation 2           + copied, one commit ----> 'submit' resumes from that savepoint

The copy is committed as the savepoint's own commit: by the same commit user and with the same
number. The state of the sinks belongs to the old table, and is left out; that of the source, whose
identifier is the same in both jobs, is what the new job starts with (``REWRITTEN``).
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa

from paimon_features.core.errors import GenerationError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.times.partition_days import first_day, first_days, partition_text
from paimon_features.core.windows import DAY_MS
from paimon_features.flink.checkpoints import Checkpoint
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow, table_options
from paimon_features.lake.metadata.consumers import (
    consumers,
    earliest_snapshot_id,
    register_consumer,
)
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TILE_DAY, TILE_START
from paimon_features.lake.writing.sorted_files import SortedFiles
from paimon_features.tiles.consumed import hold_position
from paimon_features.tiles.jobs.backfill import TileJobResult, local_backfill
from paimon_features.tiles.jobs.jobs import NOT_RUNNING, cancel, check_not_running, job_state
from paimon_features.tiles.jobs.restart import COPIES, REWRITTEN, GenerationState
from paimon_features.tiles.jobs.target import TileTarget


def rewrite(
    target: TileTarget,
    generation: int,
    *,
    rebuild: bool = False,
    on_message: OnMessage = ignore_message,
) -> TileJobResult:
    """Fill the empty generation of ``target`` with the tiles of ``generation``.

    The job of that generation, if it runs, is stopped with a savepoint; ``submit`` then continues
    the new generation from there. Readers see the old one, unchanged, until ``apply
    --generation``. Each table is one commit: a copy that was cut off is emptied and made again by
    the next call. A partition of tiles, of the larger ones of both tables, is in memory at a time.

    Raises
    ------
    GenerationError
        If the generations differ in more than buckets and partitions, the old one does not end
        with a savepoint or a backfill, or the new one is not empty.
    OwnershipError
        If a job or process owns one of the tables.
    JobError
        If the running job cannot be stopped; it then continues.
    """
    source = replace(target, generation=generation)
    old = _fitting(target, generation)
    if job_state(source.lake, old) not in NOT_RUNNING:
        on_message(f"{source}: its job is stopped with a savepoint")
        cancel(source)
    holder = ProcessHolder.current()
    with (
        source.owned(holder, "copy its tiles"),
        target.owned(holder, f"fill it with the tiles of generation {generation}"),
    ):
        check_not_running(source)
        check_not_running(target)
        ledger = source.ledger()
        resume = _position(source, ledger)
        _prepare(target, rebuild, on_message)
        target.choose_partitions(on_message)
        old = source.record()
        job = {**local_backfill(target, holder), COPIES: generation}
        target.update(job=job, events_history=old.events_history)
        held = consumers(target.lake, target.events).get(source.consumer)
        register_consumer(
            target.lake,
            target.events,
            target.consumer,
            held or earliest_snapshot_id(target.lake, target.events) or 1,
        )
        _copy_skipped(source, target, ledger, resume)
        tiles = _copy_tiles(source, target, ledger, resume)
        target.update(
            job={
                **job,
                "state": "STOPPED",
                "branch": [list(step) for step in ledger.branch.jobs],
                REWRITTEN: None if resume is None else str(resume.path),
            },
            commit_user=old.commit_user,
            resume_path=None if resume is None else str(resume.path),
            last_committed_identifier=None if resume is None or tiles is None else resume.id,
            handover_snapshot=old.handover_snapshot,
            backfilled=old.backfilled,
            backfill_snapshot=tiles if old.backfilled and resume is None else None,
            first_scan=old.first_scan,
        )
        hold_position(target.lake, target.record())
        on_message(
            f"{target}: {tiles_of(target):,} tiles copied from generation {generation}, into "
            f"{target.view.buckets} buckets ({old.buckets} before) and "
            f"{partition_text(table_options.partition_days(target.lake, target.tables[0]))}"
        )
        return TileJobResult(
            target.view.name,
            target.generation,
            "STOPPED",
            job["job_id"],
            checkpoint=None if resume is None else str(resume.path),
            snapshot=tiles,
        )


def tiles_of(target: TileTarget) -> int:
    """Return the number of rows in the newest snapshot of a tile table, before merging."""
    newest = latest_snapshot(target.lake, target.tables[0])
    return 0 if newest is None else newest.total_records


def same_tiles(record: GenerationRecord, target: TileTarget) -> bool:
    """Return True if a generation has the tiles of the target's definition, in other buckets or
    partitions perhaps."""
    return dict(record.contents) == dict(target.view.tile_contents)


def _fitting(target: TileTarget, generation: int) -> GenerationRecord:
    record = generations.get(target.lake, target.view.name, generation)
    if generation == target.generation:
        raise GenerationError(
            f"{target} is the one to be filled; name an older one, which has the tiles"
        )
    if not same_tiles(record, target):
        raise GenerationError(
            f"generation {generation} of view {target.view.name!r} has other tiles than "
            f"generation {target.generation}, not only other buckets or partitions: "
            f"'paimon-features backfill {target.view.name}' computes them from the events"
        )
    return record


def _position(source: TileTarget, ledger: GenerationState) -> Checkpoint | None:
    """Return the savepoint with which a generation ended; None if it ended with its backfill."""
    state = job_state(source.lake, source.record())
    resume = ledger.newest
    if ledger.events_replaced or state != "STOPPED" or ledger.commit_user is None:
        raise GenerationError(
            f"{source} did not end with a savepoint or a backfill (its job is {state}), or its "
            "events were replaced since: what its tiles contain is not known exactly. With the "
            f"definition that it was created for, 'paimon-features submit {source.view.name}' "
            "continues it; then repeat this"
        )
    if resume is None and not (ledger.backfilled and ledger.committed < 0):
        raise GenerationError(
            f"{source}: the savepoint of its job is gone; 'paimon-features backfill "
            f"{source.view.name}' computes the tiles from the events"
        )
    if resume is not None and ledger.committed > resume.id:
        raise GenerationError(
            f"{source}: {resume} is older than its tables, which contain checkpoint "
            f"{ledger.committed}"
        )
    return resume


def _prepare(target: TileTarget, rebuild: bool, on_message: OnMessage) -> None:
    """Empty the target if that was demanded, or if it has a part of an earlier copy."""
    ledger = target.ledger()
    if rebuild or ledger.copied_from is not None:
        target.empty(on_message)
    elif not ledger.is_empty or ledger.newest is not None or target.record().job:
        raise GenerationError(
            f"{target} is not empty: tiles on top would count events twice; --rebuild empties it "
            "first"
        )


def _author(
    source: TileTarget, ledger: GenerationState, index: int, resume: Checkpoint | None
) -> tuple[str, int]:
    """Return the commit user and number of a copy: those of the stream, so that its sink knows
    them."""
    table, user = ledger.tables[index], ledger.commit_user
    assert user is not None
    streamed = table.of_stream(user)
    if resume is not None and streamed:
        return streamed[-1].commit_user, resume.id
    if resume is not None and index == 0 and ledger.last_committed is not None:
        raise GenerationError(
            f"{source}: none of the retained snapshots of table {table.name!r} is one of its job; "
            f"'paimon-features backfill {source.view.name}' computes the tiles from the events"
        )
    return f"{user}_{uuid.uuid4()}", BATCH_IDENTIFIER


def _copy_skipped(
    source: TileTarget, target: TileTarget, ledger: GenerationState, resume: Checkpoint | None
) -> None:
    rows = read_arrow(source.lake, source.tables[1])
    if rows.num_rows:
        user, number = _author(source, ledger, 1, resume)
        append_arrow(
            target.lake, target.tables[1], rows, commit_user=user, commit_identifier=number
        )


def _copy_tiles(
    source: TileTarget, target: TileTarget, ledger: GenerationState, resume: Checkpoint | None
) -> int | None:
    """Copy the tiles, a partition at a time; returns the snapshot, None if there are none."""
    lake, view = target.lake, target.view
    newest = latest_snapshot(lake, source.tables[0])
    if newest is None:
        return None
    user, number = _author(source, ledger, 0, resume)
    keys = dict(view.keys)
    order = [(name, "ascending") for name in (TILE_DAY, *keys, TILE_START)]
    names = lake.schema(target.tables[0]).names
    partition_days = table_options.partition_days(lake, target.tables[0])
    # days that are complete partitions of both tables
    step = max(partition_days, table_options.partition_days(lake, source.tables[0]))
    source_files = live_files(lake, source.tables[0], newest.id)
    with SortedFiles(lake, target.tables[0], keys, TILE_DAY) as files:
        for day in sorted({first_day(file.partition[TILE_DAY], step) for file in source_files}):
            rows = read_arrow(
                lake, source.tables[0], names, newest.ref, partitions={TILE_DAY: (day, day + step)}
            )
            days = rows.column(TILE_START).to_numpy() // DAY_MS
            moved = pa.array(first_days(days, partition_days))
            rows = rows.set_column(0, rows.schema.field(0), moved)
            merged: pa.Table = rows.sort_by(order).combine_chunks()
            for batch in merged.to_batches():
                files.write(batch)
        return files.commit(user, number)
