"""Repair: recompute the tiles of some days from the events and compare them with the table.

A tile table contains exactly the events up to its job's position. That position is known to the
snapshot only where the job was stopped after it had read all events, so a repair begins with a
bounded run::

    events     1   2   3   4   5                 G      (nothing newer)
    tile job   read up to  ^   --- bounded --->  ^      stopped: the tiles are those of 1..G
    repair                                       |      days of 1..G, recomputed
    tile job                                     '----> continues after G as before

It owns the tile table meanwhile: no job runs. Repaired days are replaced completely. Their commit
is no checkpoint, so the job's record of its own commits stays valid.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace

from paimon_features.core.errors import GenerationError
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.partition_days import first_day as first_day_of
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import check_not_running, job_state, lag_snapshots
from paimon_features.tiles.jobs.restart import decide_start
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.tile_comparison import DayComparison, compare_day

ATTEMPTS = 3
"""Bounded runs before giving up because new events keep arriving."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was compared, what differed, and whether it was repaired.

    ``checked_days`` counts days with events or tiles (days of partitions, where these contain
    several); ``days`` are those that differ (days since 1970), without their tiles. ``snapshot`` is
    the newest of the tile table after the repair, None if nothing was written.
    """

    view: str
    generation: int
    events_snapshot: int | None
    checked_days: int
    events: int
    tiles: int
    days: tuple[DayComparison, ...]
    snapshot: int | None

    @property
    def ok(self) -> bool:
        """Whether the tiles are now correct."""
        return not self.days or self.snapshot is not None


def repair(
    target: TileTarget,
    first_day: int,
    last_day: int,
    *,
    fix: bool = False,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> RepairReport:
    """Compare the tiles of the days ``first_day`` to ``last_day`` (both inclusive) with the
    events; with ``fix`` replace the days that differ.

    A partition that contains several days is compared, and replaced, with all of them.

    With ``fix`` a bounded run of the tile job comes first if the tiles lag behind the events;
    without it nothing is written. Idempotent.

    Raises
    ------
    OwnershipError
        If a job or another process owns the tables.
    GenerationError
        If it is unknown which events the tiles contain: the job did not stop, lags behind, was
        never started, or events keep arriving.
    JobError
        If the bounded run fails.
    """
    if fix:
        _catch_up(target, on_message)
    with ExitStack() as stack:
        stack.enter_context(target.owned(ProcessHolder.current(), "repair it"))
        check_not_running(target)
        events_snapshot = _position(target)
        lake, (tiles, _) = target.lake, target.tables
        newest = latest_snapshot(lake, tiles)
        tiles_snapshot = None if newest is None else newest.id
        user = target.record().commit_user
        overwrite = (
            stack.enter_context(Overwrite(lake, tiles, f"{user}_repair-{uuid.uuid4()}"))
            if fix
            else None
        )
        different: list[DayComparison] = []
        events = cells = 0
        step = max(
            table_options.partition_days(lake, target.events),
            table_options.partition_days(lake, tiles),
        )
        partitions = _partitions(target, events_snapshot, tiles_snapshot)
        days = {first_day_of(partition.start, step) for partition in partitions}
        chosen = sorted(day for day in days if first_day < day + step and day <= last_day)
        for number, day in enumerate(chosen):
            on_phase("comparing", number, len(chosen))
            comparison = compare_day(
                lake, target.view, tiles, day, events_snapshot, tiles_snapshot, step
            )
            events += comparison.events
            cells += comparison.tiles.num_rows
            if not comparison.differs:
                continue
            if overwrite is not None:
                kept = set(comparison.tiles.column(TILE_DAY).to_pylist())
                if kept:
                    overwrite.replace(comparison.tiles)
                for first in _of_table(target.lake, tiles, TILE_DAY, tiles_snapshot):
                    if day <= first.start < day + step and first.start not in kept:
                        overwrite.empty({"tile_day": first.start})
            different.append(replace(comparison, tiles=comparison.tiles.slice(0, 0)))
        written = overwrite.commit() if overwrite is not None and different else None
    return RepairReport(
        target.view.name,
        target.generation,
        events_snapshot,
        sum(min(day + step - 1, last_day) - max(day, first_day) + 1 for day in chosen),
        events,
        cells,
        tuple(different),
        written,
    )


def _partitions(target: TileTarget, events: int | None, tiles: int | None) -> set[range]:
    """Return the days of the partitions that have events or tiles."""
    return _of_table(target.lake, target.events, EVENT_DAY, events) | _of_table(
        target.lake, target.tables[0], TILE_DAY, tiles
    )


def _of_table(lake: Lake, table: str, column: str, snapshot: int | None) -> set[range]:
    files = [] if snapshot is None else live_files(lake, table, snapshot)
    days = (file.days(column) for file in files)
    return {span for span in days if span is not None}


def _catch_up(target: TileTarget, on_message: OnMessage) -> None:
    """Run the job until the tiles contain all events, and it has stopped."""
    for _ in range(ATTEMPTS):
        submit(target, bounded=True, on_message=on_message)
        if lag_snapshots(target.lake, target.events, target.consumer) == 0:
            return
    raise GenerationError(
        f"{target}: new events keep arriving in {target.events!r}; stop its ingest during the "
        "repair, so that it is known which events the tiles contain"
    )


def _position(target: TileTarget) -> int | None:
    """Return the events snapshot whose events the tiles contain; None if there are no events."""
    record = target.record()
    state = job_state(target.lake, record)
    again = f"'paimon-features submit {target.view.name} --bounded' gets it there"
    if state is None:
        raise GenerationError(f"{target} has no tiles yet: no job was started on it; {again}")
    if state != "STOPPED":
        raise GenerationError(
            f"{target}: its last job is {state}, so a commit of it may be missing; {again}"
        )
    decide_start(target.ledger())  # raises if no job could resume here
    behind = lag_snapshots(target.lake, target.events, target.consumer)
    if behind:
        raise GenerationError(
            f"{target} is {behind} snapshots of {target.events!r} behind, and within them it is "
            f"unknown which events it contains; {again}"
        )
    newest = latest_snapshot(target.lake, target.events)
    return None if newest is None else newest.id
