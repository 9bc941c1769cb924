"""The tile jobs of a project: their states, a list of all, and stopping one from elsewhere."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from paimon_features.core.errors import JobError, OwnershipError, UnknownNameError
from paimon_features.core.process.flink_rest import TIMEOUT_S, FlinkRest
from paimon_features.core.process.waiting import wait_until
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import (
    FlinkJobHolder,
    LeaseRecord,
    ProcessHolder,
    holder_of,
)
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.tiles.jobs.target import TileTarget

CANCEL_TIMEOUT_S = 60.0

NOT_RUNNING = (None, "STOPPED", "FAILED", "LOST")
"""States of a generation whose job does not run."""

STATE_AT_END = {"FINISHED": "STOPPED", "CANCELED": "LOST", "FAILED": "FAILED"}
"""Flink's terminal states as this project reports them: a cancelled job has no savepoint."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job of ``paimon-features jobs``. Times are UTC ms.

    ``state`` is Flink's (RUNNING, RESTARTING ...) while the job runs; STOPPED after a savepoint;
    FAILED or LOST where it ended without one (``submit`` resumes from its last checkpoint);
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
    """Return the snapshots of the events table that the consumer has not released; all without a
    consumer."""
    newest = latest_snapshot(lake, events)
    following = consumers(lake, events).get(consumer, 1)
    return 0 if newest is None else max(0, newest.id + 1 - following)


def job_state(lake: Lake, record: GenerationRecord, timeout_s: float = TIMEOUT_S) -> str | None:
    """Return the state of the generation's newest job, see ``JobRow``; None if it never had one.

    ``timeout_s`` is how long its cluster may take to answer.
    """
    job = record.job
    if job is None:
        return None
    if "state" in job:
        return str(job["state"])
    if job["process"] is not None and not ProcessHolder(**job["process"]).alive()[0]:
        return "LOST"
    held = holder_of(lake, record.table)
    owner = None if held is None else held.holder
    if job.get("engine") == "local":  # computed by its own process, which owns the lease
        return "RUNNING" if owner == ProcessHolder(**job["process"]) else "LOST"
    is_owner = isinstance(owner, FlinkJobHolder) and owner.job_id == job["job_id"]
    if job["local"] and not is_owner:
        return "LOST"  # its client releases the lease, however the job ended
    try:
        state = FlinkRest(job["rest"], timeout_s).state(job["job_id"])
    except JobError:
        return "UNKNOWN"
    if state is None:
        return "LOST"
    return STATE_AT_END.get(state, state)


def check_not_running(target: TileTarget) -> None:
    """Raise OwnershipError if the generation's job runs, regardless of the lease's owner.

    The client of a job on a cluster may have died before it transferred the lease to the job.
    """
    record = target.record()
    state = job_state(target.lake, record)
    if record.job is not None and not record.job["local"] and state not in NOT_RUNNING:
        raise OwnershipError(
            f"{target} has a job, {record.job['job_id']} at {record.job['rest']}, which is "
            f"{state}; 'paimon-features submit {target.view.name} --stop' stops it. If its "
            f"cluster is certainly gone: 'paimon-features jobs --release {target.tables[0]}'"
        )


def list_jobs(lake: Lake) -> list[JobRow]:
    """Return the newest job of each generation of each view, running or not."""
    return [
        job_row(lake, record)
        for view in generations.views(lake)
        for record in generations.load(lake, view)
        if record.job is not None
    ]


def job_row(lake: Lake, record: GenerationRecord, timeout_s: float = TIMEOUT_S) -> JobRow:
    """Return the newest job of a generation that has one."""
    job = record.job
    assert job is not None
    newest = latest_snapshot(lake, record.table)
    streamed = newest is not None and newest.commit_identifier != BATCH_IDENTIFIER
    return JobRow(
        view=record.view,
        generation=record.generation,
        kind=job["kind"],
        job_id=job["job_id"],
        state=str(job_state(lake, record, timeout_s)),
        where="local" if job["local"] else job["rest"],
        since_ms=job["since_ms"],
        snapshot=None if newest is None else newest.id,
        committed_checkpoint=newest.commit_identifier if newest and streamed else None,
        lag_snapshots=lag_snapshots(lake, job["events"], record.consumer),
    )


def cancel(target: TileTarget) -> str | None:
    """Stop the running job of a generation with a savepoint; returns the savepoint's folder.

    A backfill is cancelled without one: nothing is committed, and the result is None.

    Raises
    ------
    UnknownNameError
        If no job runs.
    JobError
        If it cannot be reached, or the savepoint fails: the job then continues.
    """
    record = target.record()
    state = job_state(target.lake, record)
    if record.job is None or state in NOT_RUNNING:
        last = "none was started yet" if state is None else f"its last one is {state}"
        raise UnknownNameError(f"no job runs on {target}; {last}. 'paimon-features jobs' lists all")
    if record.job.get("engine") == "local":
        raise JobError(
            f"the backfill of {target} is computed by {ProcessHolder(**record.job['process'])}; "
            "Ctrl-C there ends it, and nothing is committed"
        )
    job_id, rest = record.job["job_id"], FlinkRest(record.job["rest"])
    if record.job["kind"] == "backfill":
        with suppress(JobError):  # a local cluster ends with its job and stops answering
            rest.cancel(job_id)
        if not _ends(target):
            state = job_state(target.lake, target.record())
            raise JobError(f"the job on {target} is still {state} after {CANCEL_TIMEOUT_S:g} s")
        return None
    try:
        rest.stop_with_savepoint(job_id, str(target.checkpoint_folder / job_id))
    except JobError:
        # a local cluster ends with its job and may not confirm the savepoint any more; another
        # one may have lost the reply: the savepoint is there before the job has ended
        if not (_has_savepoint(target, job_id) and _ends(target)):
            raise
    stopped = target.finish(job_id, "STOPPED")
    if record.job.get("application"):
        release_ended(target, job_id)
    return stopped.resume_path


def release_ended(target: TileTarget, job_id: str) -> None:
    """Release the tables of a job that has ended and whose cluster ends with it."""
    for table in target.tables:
        held = holder_of(target.lake, table)
        if held is not None and getattr(held.holder, "job_id", None) == job_id:
            lease.release(target.lake, table)


def release(lake: Lake, table: str) -> LeaseRecord | None:
    """End a table's lease by force, and record its job as lost.

    For an operator who knows that the holder is gone where that cannot be checked, such as on
    a host or cluster that no longer exists: two owners can corrupt a table. Returns the lease as
    it was, None if there was none.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    if not lake.exists(table):
        raise UnknownNameError.of("table", table, lake.list())
    ended = lease.release(lake, table)
    for view in generations.views(lake):
        for record in generations.load(lake, view):
            if record.table == table and record.job is not None and "state" not in record.job:
                lost = {**record.job, "state": "LOST"}
                generations.update(lake, view, record.generation, job=lost)
    return ended


def _ends(target: TileTarget) -> bool:
    """Wait for the end of the generation's job; False if it runs after CANCEL_TIMEOUT_S."""
    return wait_until(
        lambda: job_state(target.lake, target.record()) in NOT_RUNNING, CANCEL_TIMEOUT_S
    )


def _has_savepoint(target: TileTarget, job_id: str) -> bool:
    newest = target.ledger().newest
    return (
        newest is not None and newest.job_id == job_id and newest.path.name.startswith("savepoint-")
    )
