"""Submission of tile jobs: stream, bounded run, backfill, handover, rollback, rebuild.

A job is recorded before it is submitted: the generation's record names the job, its commit user
and the checkpoint it resumes from. So a crash at any point leaves either nothing, or something
that the record describes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core.errors import (
    GenerationError,
    HandoverError,
    JobError,
    SnapshotExpiredError,
)
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.process.interrupts import interruptible
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.checkpoints import (
    METADATA,
    Branch,
    Checkpoint,
    find_checkpoints,
    read_checkpoint,
)
from paimon_features.lake import latest_snapshot
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import (
    consumers,
    earliest_snapshot_id,
    register_consumer,
)
from paimon_features.lake.ownership.lease import Lease, ProcessHolder, check_all
from paimon_features.lake.storage.file_path import RemotePath, read_bytes
from paimon_features.tiles.consumed import release_position
from paimon_features.tiles.flink.job_runner import POLL_S, JobRunner
from paimon_features.tiles.flink.tiling import DISCOVERY_MS, REMOTE_DISCOVERY_MS, EventsScan
from paimon_features.tiles.jobs.backfill import (
    TileJobResult,
    begin_backfill,
    end_backfill,
)
from paimon_features.tiles.jobs.jobs import check_not_running, job_state, lag_snapshots
from paimon_features.tiles.jobs.restart import REWRITTEN, Start, decide_rollback, decide_start
from paimon_features.tiles.jobs.target import TileTarget

START_TIMEOUT_S = 180.0
REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class TileJobProgress:
    """How far a running job is.

    ``events_read`` and ``rate_per_s`` (of the last interval) count from the start of the job;
    ``snapshot`` is the newest of the tile table, ``lag_snapshots`` how many snapshots of the
    events table no completed checkpoint covers yet.
    """

    elapsed_s: float
    events_read: int
    rate_per_s: float
    snapshot: int | None
    lag_snapshots: int

    def __str__(self) -> str:
        behind = "caught up" if not self.lag_snapshots else f"{self.lag_snapshots} snapshots behind"
        return (
            f"{self.elapsed_s:6.0f} s  {self.events_read:>12,} events  "
            f"{self.rate_per_s:>9,.0f}/s  tiles at snapshot {self.snapshot or '-'}  {behind}"
        )


OnTileJobProgress = Callable[[TileJobProgress], None]


def submit(
    target: TileTarget,
    *,
    cluster: str | None = None,
    bounded: bool = False,
    resume: bool = False,
    rollback: bool = False,
    rebuild: bool = False,
    checkpoint: Path | str | None = None,
    progress: OnTileJobProgress = lambda _: None,
    on_message: OnMessage = ignore_message,
) -> TileJobResult:
    """Run the streaming tile job.

    In this process's JVM it runs in the foreground until SIGINT or SIGTERM stop it with a
    savepoint; on ``cluster`` (``host:port``) it runs detached. With ``bounded`` it stops once it
    has read all events that were in the table at its start.

    It starts on an empty generation, or after a backfill, or from the newest checkpoint of its
    record; with ``resume`` only from a checkpoint. ``rollback`` rolls tables that are ahead of
    that checkpoint (or of the folder ``checkpoint``) back to it; ``rebuild`` empties the
    generation first. ``on_message`` gets a line for each decision, ``progress`` how far it is,
    about every second.

    Raises
    ------
    OwnershipError
        If another job or process owns the tables.
    GenerationError
        If the job may not start; the message names the command that helps.
    HandoverError
        If the events from which it has to resume have expired.
    JobError
        If the job fails.
    """
    if checkpoint is not None and not rollback:
        raise GenerationError(
            "--checkpoint requires --rollback: the tables must match the checkpoint"
        )
    if bounded and not rollback and not rebuild and _nothing_new(target):
        on_message(f"{target}: all events of {target.events} have been read")
        return TileJobResult(target.view.name, target.generation, "UNCHANGED")
    runner = JobRunner(target, cluster, _events(target) if bounded else None)
    with (
        target.owned(runner.holder, "run its tile job") as leases,
        runner,
        interruptible() as stop,
    ):
        check_not_running(target)
        if rebuild:
            target.empty(on_message)
        if rollback:
            _roll_back(target, checkpoint, on_message)
        start = decide_start(target.ledger())
        if resume and start.resume is None:
            raise GenerationError(
                f"{target} has no checkpoint to resume from; without --resume it starts from the "
                "events"
            )
        if start.resume is not None:
            _check_parallelism(target)
        resumed = None if start.resume is None else str(start.resume.path)
        if start.resume is None and start.from_snapshot is None:
            target.choose_partitions(on_message)
        newest = latest_snapshot(target.lake, target.events)
        goal = None if not bounded or newest is None else newest.id
        scan = _scan(target, start, None if newest is None else newest.id)
        on_message(f"{target}: {_described(start, scan, target)}")
        _launch(target, runner, start, scan)
        runner.hand_over(leases)
        _await_first_checkpoint(target, runner, stop)
        if start.resume is None:
            _check_handover(target, runner, scan)
        if cluster is not None and not bounded:
            return TileJobResult(
                target.view.name, target.generation, "RUNNING", runner.job_id, resumed
            )
        events_read = _follow(target, runner, goal, stop, progress, leases if not cluster else ())
        failure = runner.failure()
        record = target.finish(runner.job_id, "STOPPED" if failure is None else "FAILED")
        if failure is not None:
            raise JobError(
                f"the tile job of {target} failed: {failure}; "
                f"'paimon-features submit {target.view.name}' resumes from its last checkpoint"
            )
        return TileJobResult(
            target.view.name,
            target.generation,
            "STOPPED",
            runner.job_id,
            resumed,
            record.resume_path,
            events_read,
            target.tiles_snapshot(),
        )


def backfill(
    target: TileTarget,
    *,
    cluster: str | None = None,
    rebuild: bool = False,
    on_message: OnMessage = ignore_message,
) -> TileJobResult:
    """Compute the tiles of all events up to the newest snapshot S, as one atomic commit.

    A consumer prevents the expiry of events from S on before the first one is read, so that
    ``submit`` can continue at S + 1. Waits for the end, also on a cluster.

    Raises
    ------
    OwnershipError, JobError
        As ``submit`` does.
    GenerationError
        If the generation is not empty.
    """
    runner = JobRunner(target, cluster, _events(target))
    with target.owned(runner.holder, "backfill it") as leases, runner:
        check_not_running(target)
        job = runner.describe("backfill", Branch())
        begun = begin_backfill(target, job, rebuild, on_message)
        if begun is None:
            return end_backfill(target, job, begun, on_message)
        user = target.record().commit_user
        assert user is not None
        runner.execute(True, {}, EventsScan(begun.id), user)
        runner.hand_over(leases)
        failure = runner.failure()
        if failure is not None:
            target.update(job={**job, "state": "FAILED"})
            raise JobError(
                f"the backfill of {target} failed: {failure}; nothing was committed, "
                f"'paimon-features backfill {target.view.name}' starts it again"
            )
        return end_backfill(target, job, begun, on_message)


def _nothing_new(target: TileTarget) -> bool:
    """Return True if a bounded run has nothing to do; raises if the job could not start either."""
    with target.owned(ProcessHolder.current(), "check for new events"):
        check_not_running(target)
        start = decide_start(target.ledger())
        if latest_snapshot(target.lake, target.events) is None:
            return True
        begun = start.resume is not None or start.from_snapshot is not None
        if job_state(target.lake, target.record()) not in (None, "STOPPED"):
            return False  # the commit of its last checkpoint may be missing; resuming commits it
        return begun and lag_snapshots(target.lake, target.events, target.consumer) == 0


def _roll_back(target: TileTarget, folder: Path | str | None, on_message: OnMessage) -> None:
    ledger = target.ledger()
    checkpoint = ledger.newest
    if folder is not None:
        path = target.checkpoint_at(folder)
        checkpoint = read_checkpoint(path.resolve() if isinstance(path, Path) else path)
    if checkpoint is None:
        raise GenerationError(
            f"{target} has no checkpoint to roll back to; pass a copy by --checkpoint FOLDER, or "
            f"'paimon-features submit {target.view.name} --rebuild' starts over"
        )
    targets = decide_rollback(ledger, checkpoint)
    target.roll_back(targets, checkpoint)
    for table, snapshot in targets.items():
        on_message(
            f"{table}: rolled back to {'empty' if snapshot is None else f'snapshot {snapshot}'}"
        )
    # the consumer may be ahead of an older checkpoint; the job advances it from here
    earliest = earliest_snapshot_id(target.lake, target.events)
    register_consumer(target.lake, target.events, target.consumer, earliest or 1)


def _check_parallelism(target: TileTarget) -> None:
    """Raise GenerationError for more tasks than one after a job of one: Flink then runs source and
    commit as one task, and marks its state as that of a task that never has another number."""
    before = (target.record().job or {}).get("parallelism")
    wanted = target.flink.parallelism
    if before == 1 and wanted > 1:
        raise GenerationError(
            f"{target} ran with one task, and Flink cannot resume its checkpoint with {wanted}: "
            "use --parallelism 1, or start over with --rebuild. A job with two or more can be "
            "resumed with any number"
        )


def _scan(target: TileTarget, start: Start, newest: int | None) -> EventsScan:
    """Return the scan of the job, with its consumer registered.

    A job that resumes continues from its checkpoint, whatever the scan says, and Paimon raises an
    error if that position has expired. One that starts over would silently start later.
    """
    name = target.consumer
    every_ms = REMOTE_DISCOVERY_MS if target.lake.storage.is_remote else DISCOVERY_MS
    held = consumers(target.lake, target.events).get(name)
    if start.resume is not None:
        if held is None:
            register_consumer(
                target.lake,
                target.events,
                name,
                earliest_snapshot_id(target.lake, target.events) or 1,
            )
        return EventsScan(1, consumer=name, discovery_ms=every_ms)
    if start.from_snapshot is None and newest is not None:
        scan = EventsScan(newest, whole=True, consumer=name, discovery_ms=every_ms)
    else:
        scan = EventsScan(start.from_snapshot or 1, consumer=name, discovery_ms=every_ms)
    try:
        register_consumer(target.lake, target.events, name, scan.from_snapshot)
    except SnapshotExpiredError as error:
        raise _lost_events(target, scan) from error
    return scan


def _lost_events(target: TileTarget, scan: EventsScan) -> HandoverError:
    return HandoverError(
        f"{target} has to continue at snapshot {scan.from_snapshot} of {target.events!r}, which "
        f"has expired; the earliest is {earliest_snapshot_id(target.lake, target.events)}. The "
        f"events in between would be lost: "
        f"'paimon-features backfill {target.view.name} --rebuild' reads all events again"
    )


def _described(start: Start, scan: EventsScan, target: TileTarget) -> str:
    if start.resume is not None:
        return f"resumes from {start.resume}"
    if scan.whole:
        return f"starts with all events of {target.events}, snapshot {scan.from_snapshot}"
    if start.from_snapshot is not None:
        return f"continues after its backfill, at snapshot {scan.from_snapshot} of {target.events}"
    return f"starts; {target.events} has no events yet"


def _launch(target: TileTarget, runner: JobRunner, start: Start, scan: EventsScan) -> None:
    """Record the job, then start it."""
    record = target.record()
    branch = Branch.of(record.job).then(runner.job_id, start.resume)
    keeps_user = start.resume is not None or start.from_snapshot is not None
    user = record.commit_user if keeps_user else None
    rewritten = start.resume is not None and str(start.resume.path) == (record.job or {}).get(
        REWRITTEN
    )
    job = runner.describe("stream", branch)
    if rewritten:
        job[REWRITTEN] = str(start.resume.path)  # type: ignore[union-attr]
    record = target.update(
        job=job,
        commit_user=user or target.new_commit_user(),
        checkpoint_folder=str(target.checkpoint_folder),
        resume_path=None if start.resume is None else str(start.resume.path),
        last_committed_identifier=target.ledger(record).tiles_committed if keeps_user else None,
        events_history=table_history.mark(target.lake, target.events),
        first_scan=record.first_scan if keeps_user else scan.from_snapshot if scan.whole else 0,
    )
    release_position(target.lake, record, target.events)
    target.prune_checkpoints(start.resume)
    options = {
        "execution.checkpointing.interval": f"{target.flink.checkpoint_interval_ms} ms",
        "execution.checkpointing.dir": target.checkpoint_folder.as_uri(),
        "state.backend.type": "hashmap",
    }
    if start.resume is not None:
        options["execution.state-recovery.path"] = start.resume.path.as_uri()
    if rewritten:
        # that of the sinks belongs to the table of the other generation
        options["execution.state-recovery.ignore-unclaimed-state"] = "true"
    assert record.commit_user is not None
    try:
        runner.execute(False, options, scan, record.commit_user)
    except JobError:
        target.finish(runner.job_id, "FAILED")
        raise
    if rewritten and start.resume is not None:
        _check_source(target, runner, start.resume)


def _check_source(target: TileTarget, runner: JobRunner, resume: Checkpoint) -> None:
    """Check that the job's source continues from the checkpoint: other state may be left out."""
    state = read_bytes(resume.path / METADATA)
    sources: list[str] = []

    def known() -> bool:
        with suppress(JobError):  # it may not answer yet
            sources[:] = runner.rest.sources(runner.job_id)
        return bool(sources) or runner.ended

    wait_until(known, START_TIMEOUT_S)
    if not sources or any(bytes.fromhex(source) not in state for source in sources):
        # without a recorded commit user, the tables are refused until they are rebuilt
        target.update(commit_user=None)
        runner.cancel()
        raise GenerationError(
            f"{target}: {resume} does not contain the position of this job's source; "
            f"'paimon-features backfill {target.view.name} --rebuild' computes the tiles from the "
            "events"
        )


def _await_first_checkpoint(target: TileTarget, runner: JobRunner, stop: threading.Event) -> None:
    """Wait until the job has completed a checkpoint."""
    deadline = time.monotonic() + START_TIMEOUT_S
    folder = target.checkpoint_folder
    while not stop.is_set() and not runner.ended and time.monotonic() < deadline:
        if any(c.job_id == runner.job_id for c in find_checkpoints(folder)):
            return
        time.sleep(POLL_S * 2 if isinstance(folder, RemotePath) else POLL_S / 5)


def _check_handover(target: TileTarget, runner: JobRunner, scan: EventsScan) -> None:
    """Check, once the job reads, that its first snapshot had not expired: it still exists."""
    earliest = earliest_snapshot_id(target.lake, target.events)
    if earliest is not None and earliest > scan.from_snapshot:
        # without a recorded commit user, the tables are refused until they are rebuilt
        target.update(commit_user=None)
        runner.cancel()
        raise _lost_events(target, scan)


def _follow(
    target: TileTarget,
    runner: JobRunner,
    goal: int | None,
    stop: threading.Event,
    progress: OnTileJobProgress,
    leases: Sequence[Lease],
) -> int:
    """Watch the job until it ends, and stop it when it is due; returns the events it has read.

    LeaseLostError once one of ``leases`` is lost: the job of this process must not continue.
    """
    began = reported = time.monotonic()
    events_read = before = 0
    while not runner.ended:
        check_all(leases)
        with suppress(JobError):  # it may just be ending
            events_read = runner.rest.source_records(runner.job_id)
        # a completed checkpoint moves the consumer behind the snapshots that it covers
        following = consumers(target.lake, target.events).get(target.consumer, 0) if goal else 0
        if stop.is_set() or (goal is not None and following > goal):
            runner.stop()
            break
        now = time.monotonic()
        if now - reported >= REPORT_S:
            progress(
                TileJobProgress(
                    now - began,
                    events_read,
                    (events_read - before) / (now - reported),
                    target.tiles_snapshot(),
                    lag_snapshots(target.lake, target.events, target.consumer),
                )
            )
            reported, before = now, events_read
        stop.wait(POLL_S)
    return events_read


def _events(target: TileTarget) -> int:
    """Return the number of events in the table; a run may read fewer."""
    newest = latest_snapshot(target.lake, target.events)
    return 0 if newest is None else newest.total_records
