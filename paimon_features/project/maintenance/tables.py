"""Maintenance of a project's tables: compaction, then expiry of old snapshots.

Each table is maintained as its owner: one that a job owns is skipped, and reported; a trainer that
writes feedback waits. A detached tile job can be paused: it stops with a savepoint, and resumes
from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paimon_features.core.errors import OwnershipError, UnknownNameError
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.lake import Lake, latest_snapshot, snapshots
from paimon_features.lake.metadata.snapshots import snapshot_ids
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.lease import FlinkJobHolder, Lease, acquire, holder_of
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder import generations
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.lake.table_folders import rollup_folder
from paimon_features.lake.writing.partition_merge import merge_partitions
from paimon_features.lake.writing.staging import STAGING_PREFIX
from paimon_features.models.pinned_snapshots import hold_pinned, oldest_pins
from paimon_features.offline.rollup import roll_up
from paimon_features.project.maintenance.maintenance_sql import (
    TableSize,
    compact_sql,
    expire_sql,
    to_compact,
)
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel
from paimon_features.tiles.jobs.restart import TableHistory
from paimon_features.tiles.jobs.target import ProjectParts, TileTarget

if TYPE_CHECKING:
    from paimon_features.project.maintenance.procedures import Procedures


MANY_FILES, SMALL_BYTES = 16, 16 << 20
"""So many files of so few bytes each make a training set worth a compaction unasked."""


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """The sizes of one table before and after; ``skipped`` is the reason if it was skipped."""

    table: str
    before: TableSize
    after: TableSize
    skipped: str | None = None


def maintain(
    project: ProjectParts,
    names: Sequence[str] = (),
    *,
    compact: bool = True,
    keep_newest: int | None = None,
    pause: bool = False,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> list[MaintainedTable]:
    """Maintain the named tables, or all of the project.

    Of training sets those snapshots are kept that registered model versions were trained on, and
    all later ones. As a compaction makes a snapshot, and training on it another run, one that is
    not named is compacted only if it has many small files. ``keep_newest`` keeps so many snapshots,
    in place of the two hours of the tables' options. With ``pause`` detached tile jobs are stopped
    and resume afterwards. With ``compact`` the tiles of views with a lifetime window are rolled up
    at the end, which needs no pause.

    Raises
    ------
    UnknownNameError
        For an unknown table.
    JobError
        If a procedure fails; the tables before it have been maintained.
    """
    lake = project.lake
    tables = [t for t in lake.list() if not t.startswith(STAGING_PREFIX)]
    for name in names:
        if name not in tables:
            raise UnknownNameError.of("table", name, tables)
    chosen = list(names) or tables
    out = []
    with _paused(project, chosen, on_message) if pause else nullcontext():
        procedures: Procedures | None = None
        pinned = oldest_pins(lake) if any(t.startswith(TRAINING_PREFIX) for t in chosen) else {}
        for number, table in enumerate(chosen):
            on_phase(f"maintaining {table}", number, len(chosen))
            before = size_of(lake, table)
            try:
                with acquire(lake, table, purpose="maintain it") as lease:
                    if latest_snapshot(lake, table) is not None:
                        procedures = procedures or _procedures(project)
                        worth = compact
                        if table.startswith(TRAINING_PREFIX):
                            hold_pinned(lake, table, pinned.get(table))
                            worth = compact and (table in names or _many_small(before))
                        _maintain(project, procedures, table, worth, keep_newest, on_message, lease)
                out.append(MaintainedTable(table, before, size_of(lake, table)))
            except OwnershipError as error:
                out.append(MaintainedTable(table, before, before, skipped=str(error)))
    if compact:
        _roll_up(project, chosen, on_message)
    return out


def size_of(lake: Lake, table: str) -> TableSize:
    """Return the table's size now."""
    newest = latest_snapshot(lake, table)
    live = 0 if newest is None else len(live_files(lake, table, newest.id))
    sizes = lake.storage.sizes(lake.path(table))
    return TableSize(live, len(snapshot_ids(lake, table)), len(sizes), sum(sizes.values()))


def _many_small(size: TableSize) -> bool:
    return size.live_files >= MANY_FILES and size.bytes < SMALL_BYTES * size.files


def _procedures(project: ProjectParts) -> Procedures:
    from paimon_features.project.maintenance.procedures import Procedures

    config = project.config
    return Procedures(project.lake, config.flink.parallelism, config.state_dir)


def record_commits(project: ProjectParts, table: str) -> None:
    """Record what streams have committed to a table, while its snapshots show it.

    A job that was killed has not recorded it. Without, a copy of older checkpoints would pass for
    the newest one. The caller owns the table.
    """
    lake = project.lake
    for source in project.definitions.sources.values():
        if table in (source.table, source.rejected_table) and lake.exists(source.table):
            IngestLedger(lake, source).settle_streams()
    for view in generations.views(lake):
        for record in generations.load(lake, view):
            if record.table != table or record.commit_user is None:
                continue
            committed = TableHistory(table, tuple(snapshots(lake, table))).streamed(
                record.commit_user
            )
            if committed > (record.last_committed_identifier or -1):
                with commit_lock(lake, table, f"recording the state of {table}"):
                    generations.update(
                        lake, view, record.generation, last_committed_identifier=committed
                    )


def _maintain(
    project: ProjectParts,
    procedures: Procedures,
    table: str,
    compact: bool,
    keep_newest: int | None,
    on_message: OnMessage,
    lease: Lease,
) -> None:
    lake = project.lake
    full = f"{lake.database}.{table}"
    if compact:
        merged = merge_partitions(lake, table)
        if merged.before:
            on_message(f"{table}: merged {merged.before:,} partitions into {merged.after:,}")
        newest = latest_snapshot(lake, table)
        assert newest is not None
        keyed = lake.table(table).is_primary_key_table
        partitions = to_compact(live_files(lake, table, newest.id), keyed)
        if partitions:
            on_message(f"{table}: compacting {len(partitions)} partitions")
            lease.check()
            procedures.call(compact_sql(full, keyed, partitions), f"compacting {table}")
    record_commits(project, table)
    on_message(f"{table}: expiring snapshots")
    lease.check()
    procedures.call(expire_sql(full, keep_newest), f"expiring snapshots of {table}")


def _roll_up(project: ProjectParts, tables: Sequence[str], on_message: OnMessage) -> None:
    """Roll up the tables that lifetime windows read; report those that another process owns."""
    for view in (view.compiled for view in project.definitions.views.values()):
        record = generations.active(project.lake, view.name)
        if record is None or record.fingerprint != view.fingerprint or not view.has_lifetime:
            continue
        if rollup_folder(project.lake, record.table) is None:  # an object store has none
            continue
        if not view.keys:  # it is read by ranges of time, which takes no rollups
            continue
        if record.table in tables:
            try:
                rolled = roll_up(project.lake, view, record, now_ms())
                on_message(f"{record.table}: rolled up, {rolled}")
            except OwnershipError as error:
                on_message(f"{record.table}: not rolled up: {error}")


@contextmanager
def _paused(project: ProjectParts, tables: Sequence[str], on_message: OnMessage) -> Iterator[None]:
    """Stop detached tile jobs of these tables for the block, and resume them after it."""
    paused: list[tuple[TileTarget, str]] = []
    try:
        for target, cluster in _detached(project, tables):
            on_message(f"{target}: pausing its job")
            cancel(target)
            paused.append((target, cluster))
        yield
    finally:
        for target, cluster in paused:
            on_message(f"{target}: resuming its job")
            submit(target, cluster=cluster, resume=True)


def _detached(project: ProjectParts, tables: Sequence[str]) -> Iterator[tuple[TileTarget, str]]:
    """Yield the tile jobs on a cluster that write to one of these tables, with the cluster's
    address."""
    for view in generations.views(project.lake):
        for record in generations.load(project.lake, view):
            lease = holder_of(project.lake, record.table)
            if not {record.table, record.skipped_table} & set(tables) or lease is None:
                continue
            job = record.job or {"local": True}
            running = isinstance(lease.holder, FlinkJobHolder) and lease.holder.alive()[0]
            if running and not job["local"]:
                yield TileTarget.of(project, view, record.generation), job["rest"]
