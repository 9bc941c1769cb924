"""What tile jobs do: progress of one, a list of all, and stopping one from elsewhere."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paimon_features.errors import JobError, UnknownNameError
from paimon_features.flink.rest import FlinkRest
from paimon_features.flink.submission.target import TileTarget
from paimon_features.tables import Lake, generations, latest_snapshot, lease
from paimon_features.tables.consumers import consumers
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.lease import FlinkJobHolder, LeaseRecord, ProcessHolder, holder_of
from paimon_features.tables.snapshots import BATCH_IDENTIFIER

if TYPE_CHECKING:
    from paimon_features.project import Project


CANCEL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running job is.

    ``events_read`` and ``rate_per_s`` (of the last interval) count since the job was started;
    ``snapshot`` is the newest of the tile table, ``lag_snapshots`` how many snapshots of the
    events table are not yet in a completed checkpoint.
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


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job of ``paimon-features jobs``. Times are UTC ms.

    ``state`` is Flink's (RUNNING, RESTARTING ...) while the job lives; STOPPED after a savepoint;
    FAILED or LOST where it ended without one (``submit`` goes on from its last checkpoint);
    UNKNOWN while its cluster does not answer.
    """

    view: str
    generation: int
    kind: str
    job_id: str
    state: str
    where: str
    since_ms: int
    snapshot: int | None
    committed_checkpoint: int | None
    lag_snapshots: int | None


def lag_snapshots(lake: Lake, events: str, consumer: str) -> int:
    """Snapshots of the events table that the consumer has not let go of; all, if there is none."""
    newest = latest_snapshot(lake, events)
    following = consumers(lake, events).get(consumer, 1)
    return 0 if newest is None else max(0, newest.id + 1 - following)


def job_state(lake: Lake, record: GenerationRecord) -> str | None:
    """The state of the generation's newest job, as ``JobRow`` words it; None if it had none."""
    job = record.job
    if job is None:
        return None
    if "state" in job:
        return str(job["state"])
    if job["process"] is not None and not ProcessHolder(**job["process"]).alive()[0]:
        return "LOST"
    held = holder_of(lake, record.table)
    owner = None if held is None else held.holder
    if job.get("engine") == "local":  # its own process computes it, and holds the lease
        return "RUNNING" if owner == ProcessHolder(**job["process"]) else "LOST"
    own = isinstance(owner, FlinkJobHolder) and owner.job_id == job["job_id"]
    if job["local"] and not own:
        return "LOST"  # its client gives the lease back, whatever ended it
    try:
        state = FlinkRest(job["rest"]).state(job["job_id"])
    except JobError:
        return "UNKNOWN"
    if state is None:
        return "LOST"
    return _ENDS.get(state, state)


def list_jobs(project: Project) -> list[JobRow]:
    """The newest job of each generation of each view, running or not."""
    lake = project.lake
    return [
        _row(lake, record)
        for view in generations.views(lake)
        for record in generations.load(lake, view)
        if record.job is not None
    ]


def cancel(target: TileTarget) -> str | None:
    """Stop the running job of a generation with a savepoint; returns the savepoint's folder.

    A backfill is cancelled; nothing of it counts then, and the result is None.

    Raises
    ------
    UnknownNameError
        If none runs.
    JobError
        If it cannot be reached, or the savepoint fails: the job goes on then.
    """
    record = target.record()
    state = job_state(target.lake, record)
    if record.job is None or state in STILL:
        last = "none was started yet" if state is None else f"its last one is {state}"
        raise UnknownNameError(f"no job runs on {target}; {last}. 'paimon-features jobs' lists all")
    if record.job.get("engine") == "local":
        raise JobError(
            f"the backfill of {target} is computed by {ProcessHolder(**record.job['process'])}; "
            "Ctrl-C there ends it, and nothing of it counts then"
        )
    job_id, rest = record.job["job_id"], FlinkRest(record.job["rest"])
    if record.job["kind"] == "backfill":
        with suppress(JobError):  # a local cluster ends with its job and does not answer any more
            rest.cancel(job_id)
        _await_end(target)
        return None
    try:
        rest.stop_with_savepoint(job_id, target.checkpoint_folder / job_id)
    except JobError:
        # a local cluster ends with its job and may not answer any more that it is done
        if not _has_savepoint(target, job_id):
            raise
    return target.finish(job_id, "STOPPED").resume_path


def release(project: Project, table: str) -> LeaseRecord | None:
    """End a table's lease by force, and count the job that is recorded on it as lost.

    For an operator who knows that the holder is gone where that cannot be asked, such as on
    a host or cluster that is no more: two owners can make a table wrong. Returns the lease as it
    was, None if there was none.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    lake = project.lake
    if not lake.exists(table):
        raise UnknownNameError.of("table", table, lake.list())
    ended = lease.release(lake, table)
    for view in generations.views(lake):
        for record in generations.load(lake, view):
            if record.table == table and record.job is not None and "state" not in record.job:
                lost = {**record.job, "state": "LOST"}
                generations.update(lake, view, record.generation, job=lost)
    return ended


STILL = (None, "STOPPED", "FAILED", "LOST")
"""States of a job that does not run."""

_ENDS = {"FINISHED": "STOPPED", "CANCELED": "LOST", "FAILED": "FAILED"}


def _await_end(target: TileTarget) -> None:
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while (state := job_state(target.lake, target.record())) not in STILL:
        if time.monotonic() > deadline:
            raise JobError(f"the job on {target} is still {state} after {CANCEL_TIMEOUT_S:g} s")
        time.sleep(0.1)


def _has_savepoint(target: TileTarget, job_id: str) -> bool:
    newest = target.ledger().newest
    return (
        newest is not None and newest.job_id == job_id and newest.path.name.startswith("savepoint-")
    )


def _row(lake: Lake, record: GenerationRecord) -> JobRow:
    job = record.job
    assert job is not None
    newest = latest_snapshot(lake, record.table)
    numbers = [s.commit_identifier for s in ([] if newest is None else [newest])]
    streamed = [n for n in numbers if n != BATCH_IDENTIFIER]
    return JobRow(
        view=record.view,
        generation=record.generation,
        kind=job["kind"],
        job_id=job["job_id"],
        state=str(job_state(lake, record)),
        where="local" if job["local"] else job["rest"],
        since_ms=job["since_ms"],
        snapshot=None if newest is None else newest.id,
        committed_checkpoint=streamed[0] if streamed else None,
        lag_snapshots=lag_snapshots(lake, job["events"], record.consumer),
    )
