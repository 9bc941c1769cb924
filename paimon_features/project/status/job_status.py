"""The jobs of a project and the leases of its tables, as far as they can be read now."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.windows import MINUTE_MS
from paimon_features.flink.checkpoints import METADATA, find_checkpoints
from paimon_features.lake import Lake
from paimon_features.lake.ownership.lease import LeaseRecord, ProcessHolder, current_state, holders
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.storage.file_path import CHECKPOINTS, FilePath, modified_ns
from paimon_features.tiles.jobs.jobs import NOT_RUNNING, JobRow, job_row

REST_TIMEOUT_S = 2.0
"""A cluster that has not responded within this time counts as unreachable."""
OLD_CHECKPOINT_MS = 5 * MINUTE_MS
"""A running stream whose newest checkpoint is older than this needs attention."""
_THREADS = 8


@dataclass(frozen=True, slots=True)
class JobStatus(JobRow):
    """A job's row, with what is known of its checkpoints and failures; times in UTC ms.

    ``checkpoint`` is the newest complete checkpoint or savepoint of
    the job, written at ``checkpoint_ms`` (None: none there). ``restarts`` and
    ``last_error`` are those that Flink reports, None where it does not.
    """

    checkpoint: int | None
    checkpoint_ms: int | None
    restarts: int | None
    last_error: str | None

    def attention(self, now_ms: int) -> str | None:
        """Return what is wrong with it, None if nothing is."""
        name = f"job of {self.view} g{self.generation}"
        error = f": {self.last_error}" if self.last_error else ""
        if self.state in ("FAILED", "LOST"):
            return (
                f"{name}: {self.state}{error}; 'paimon-features submit {self.view} --resume' "
                "continues from its last checkpoint"
            )
        if self.state == "UNKNOWN":
            return f"{name}: its cluster {self.where} does not respond"
        if self.state in ("RESTARTING", "FAILING"):
            return f"{name}: {self.state}{error}"
        streaming = self.kind != "backfill" and self.state == "RUNNING"
        if streaming and now_ms - max(self.checkpoint_ms or 0, self.since_ms) > OLD_CHECKPOINT_MS:
            return f"{name}: no checkpoint for more than {OLD_CHECKPOINT_MS // MINUTE_MS} minutes"
        return None


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The owner of a table. ``heartbeat_age_s`` is None for owners without a heartbeat.

    ``liveness`` is alive, dead or unknown, ``state`` the reason.
    """

    table: str
    owner: str
    purpose: str
    since_ms: int
    number: int
    liveness: str
    state: str
    heartbeat_age_s: float | None

    def attention(self, silent_after_s: float) -> str | None:
        """Return what is wrong with it, None if nothing is."""
        silent = self.heartbeat_age_s is None or self.heartbeat_age_s > silent_after_s
        if self.liveness == "dead" or (self.liveness == "unknown" and silent):
            return (
                f"lease of {self.table}: {self.owner} has not released it ({self.state}); the next "
                "command that writes the table takes it over once its owner is known to be dead"
            )
        return None


def read_jobs(lake: Lake, job_state: FilePath) -> list[JobStatus]:
    """Return the newest job of each generation; their clusters are requested concurrently."""
    records = [
        record
        for view in generations.views(lake)
        for record in generations.load(lake, view)
        if record.job is not None
    ]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda record: _job(lake, job_state, record), records))


def read_leases(lake: Lake, now_ms: int) -> list[LeaseStatus]:
    """Return all leases that are held, by table; waits for no heartbeat."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda record: _lease(lake, record, now_ms), holders(lake)))


def _job(lake: Lake, job_state: FilePath, record: GenerationRecord) -> JobStatus:
    row: JobRow = job_row(lake, record, REST_TIMEOUT_S)
    folder = job_state / CHECKPOINTS / record.view / f"g{record.generation}"
    checkpoints = [c for c in find_checkpoints(folder) if c.job_id == row.job_id]
    checkpoint, checkpoint_ms = None, None
    for newest in reversed(checkpoints):
        try:
            checkpoint_ms = modified_ns(newest.path / METADATA) // 1_000_000
            checkpoint = newest.id
            break
        except FileNotFoundError:  # Flink deletes old checkpoints
            continue
    restarts, error = _of_flink(record.job or {}, row.state)
    fields = {name: getattr(row, name) for name in JobRow.__slots__}
    return JobStatus(
        **fields,
        checkpoint=checkpoint,
        checkpoint_ms=checkpoint_ms,
        restarts=restarts,
        last_error=error,
    )


def _of_flink(job: dict[str, Any] | Any, state: str) -> tuple[int | None, str | None]:
    """Restarts and root cause of the last failure, as far as a cluster reports them."""
    if job.get("rest") is None or state in (*NOT_RUNNING, "UNKNOWN"):
        return None, None
    try:
        rest = FlinkRest(job["rest"], REST_TIMEOUT_S)
        return rest.restarts(job["job_id"]), rest.failure(job["job_id"])
    except PaimonFeaturesError:
        return None, None


def _lease(lake: Lake, record: LeaseRecord, now_ms: int) -> LeaseStatus:
    liveness, why, beat_ms = current_state(lake, record)
    # the clock is that of this machine, the time that of the file server
    age_s = None if beat_ms is None else round(max(0, now_ms - beat_ms) / 1_000, 1)
    return LeaseStatus(
        record.table,
        str(record.holder),
        record.purpose,
        record.since_ms,
        record.number,
        liveness,
        why,
        age_s if isinstance(record.holder, ProcessHolder) else None,
    )


def attentions(
    jobs: Iterable[JobStatus], leases: Iterable[LeaseStatus], silent_after_s: float, now_ms: int
) -> list[str]:
    """Return what needs attention, a sentence each."""
    texts = [job.attention(now_ms) for job in jobs]
    texts += [lease.attention(silent_after_s) for lease in leases]
    return [text for text in texts if text is not None]
