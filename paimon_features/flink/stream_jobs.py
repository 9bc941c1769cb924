"""Ingestion jobs of streams and iteration jobs: their records, and their states now.

One file for each stream or program in the project's state folder, written when its newest job is
submitted and again at its end by the client that waits for it::

    <state folder>/stream_jobs/<kind>-<digest of the name>.json

A detached job has no such client: its cluster reports its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import JobError, PaimonFeaturesError
from paimon_features.core.process.flink_rest import ENDED, TIMEOUT_S, FlinkRest
from paimon_features.core.process.process_holder import ProcessHolder
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import MINUTE_MS
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.storage.json_files import read_json, write_json

FOLDER = "stream_jobs"
OLD_MS = 5 * MINUTE_MS
"""A commit or checkpoint that is older than this is old."""
MANY_RESTARTS = 3
"""A job that was restarted so often needs attention although it runs now."""


@dataclass(frozen=True, slots=True)
class StreamJobRecord:
    """The newest job of a stream or program.

    ``process`` is the process that the job ends with: its client's JVM, or a cluster of this host.
    ``rest`` is None where the job has no REST interface. ``state`` is None until the end.
    """

    kind: str
    name: str
    job_id: str
    rest: str | None
    local: bool
    process: ProcessHolder | None
    since_ms: int
    writes: tuple[str, ...]
    tables: tuple[str, ...] = ()
    state: str | None = None
    ended_ms: int | None = None
    error: str | None = None

    @classmethod
    def of(cls, raw: dict[str, Any]) -> StreamJobRecord:
        """Return the record in its file."""
        process = None if raw["process"] is None else ProcessHolder(**raw["process"])
        tables = {name: tuple(raw[name]) for name in ("writes", "tables")}
        return cls(**{**raw, **tables, "process": process})


@dataclass(frozen=True, slots=True)
class StreamJob:
    """An ingestion or iteration job as far as it can be known now. Times are UTC ms.

    ``state`` is Flink's while it runs; FINISHED, STOPPED or FAILED after its end; LOST if it ended
    without a record of its end (``detail`` says why); UNKNOWN while its cluster does not answer.
    ``lag`` is in messages, None where it is not known. ``connected`` is whether its source receives
    data from its brokers, None where that is not known.
    """

    kind: str
    name: str
    job_id: str
    state: str
    detail: str | None
    where: str
    since_ms: int
    writes: tuple[str, ...]
    committed_ms: int | None
    last_error: str | None
    checkpoint_ms: int | None = None
    restarts: int | None = None
    lag: int | None = None
    connected: bool | None = None

    def attention(self, now_ms: int) -> str | None:
        """Return what is wrong with it, None if nothing is."""
        name = f"{self.kind} job {self.name}"
        why = f" ({self.detail})" if self.detail else ""
        error = f": {self.last_error}" if self.last_error else ""
        if self.state in ("FAILED", "LOST", "UNKNOWN", "RESTARTING", "FAILING", "CANCELED"):
            return f"{name}: {self.state}{why}{error}"
        if self.state != "RUNNING":
            return None
        if self.connected is False:
            return f"{name}: it runs and receives nothing from its brokers; its lag is unknown"
        if (self.restarts or 0) >= MANY_RESTARTS:
            return f"{name}: restarted {self.restarts} times{error}"
        if self.kind == "ingest":
            return self._late(name, now_ms)
        return None

    def _late(self, name: str, now_ms: int) -> str | None:
        minutes = OLD_MS // MINUTE_MS
        if self.lag and now_ms - max(self.committed_ms or 0, self.since_ms) > OLD_MS:
            return (
                f"{name}: {self.lag:,} messages behind, no commit for more than {minutes} minutes"
            )
        if now_ms - max(self.checkpoint_ms or 0, self.since_ms) > OLD_MS:
            return f"{name}: no checkpoint for more than {minutes} minutes, or none is known"
        return None


def record_job(state_dir: Path, record: StreamJobRecord) -> None:
    """Record a job that is about to start or has just started."""
    document = asdict(record)
    write_json(_path(state_dir, record.kind, record.name), document)


def record_end(state_dir: Path, job_id: str, state: str, error: object = None) -> None:
    """Record the end of a job; the first end counts, and a job that is not recorded is ignored."""
    text = None if error is None else redact(str(error)).partition("\n")[0]
    for record in _records(state_dir):
        if record.job_id == job_id and record.state is None:
            record_job(state_dir, replace(record, state=state, ended_ms=now_ms(), error=text))


@contextmanager
def recorded(state_dir: Path, record: StreamJobRecord) -> Iterator[None]:
    """Record a job for the block that submits it and waits for it, and how the block ends.

    Without an error the caller records the end itself, since a detached job continues.
    """
    record_job(state_dir, record)
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        state, cause = ("STOPPED", None) if stopped else ("FAILED", error)
        record_end(state_dir, record.job_id, state, cause)
        raise


def list_stream_jobs(lake: Lake, state_dir: Path, timeout_s: float = TIMEOUT_S) -> list[StreamJob]:
    """Return the newest job of each stream and program that was started with this state folder."""
    return [_job(lake, record, timeout_s) for record in _records(state_dir)]


def _records(state_dir: Path) -> list[StreamJobRecord]:
    records = [read_json(path) for path in sorted((state_dir / FOLDER).glob("*.json"))]
    return [StreamJobRecord.of(raw) for raw in records if raw is not None]


def _path(state_dir: Path, kind: str, name: str) -> Path:
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return state_dir / FOLDER / f"{kind}-{digest}.json"


def _job(lake: Lake, record: StreamJobRecord, timeout_s: float) -> StreamJob:
    state, detail = _state(record, timeout_s)
    committed = [latest_snapshot(lake, table) for table in record.tables if lake.exists(table)]
    where = "local" if record.local else str(record.rest)
    job = StreamJob(
        record.kind,
        record.name,
        record.job_id,
        state,
        detail,
        where,
        record.since_ms if record.ended_ms is None else record.ended_ms,
        record.writes,
        max((snapshot.time_ms for snapshot in committed if snapshot), default=None),
        record.error,
    )
    if record.state is not None or record.rest is None or state in ("LOST", "UNKNOWN"):
        return job
    with suppress(PaimonFeaturesError):  # it may just have ended: what is not known stays None
        return _reported(job, FlinkRest(record.rest, timeout_s))
    return job


def _state(record: StreamJobRecord, timeout_s: float) -> tuple[str, str | None]:
    if record.state is not None:
        return record.state, None
    if record.process is not None and record.process.liveness()[0] == "dead":
        who = "its client" if record.local else "its cluster"
        return "LOST", f"{who}, {record.process}, has ended"
    if record.local and record.process is not None and record.process.liveness()[0] == "unknown":
        return "UNKNOWN", f"it runs inside {record.process}, which cannot be seen from here"
    if record.rest is None:
        return "UNKNOWN", "it has no REST interface that reports its state"
    try:
        state = FlinkRest(record.rest, timeout_s).state(record.job_id)
    except JobError:
        return "UNKNOWN", f"{record.rest} does not respond"
    return ("LOST", f"{record.rest} does not know it") if state is None else (state, None)


def _reported(job: StreamJob, rest: FlinkRest) -> StreamJob:
    """Return the job with what its cluster reports."""
    failure = rest.failure(job.job_id)
    error = job.last_error if failure is None else redact(failure).partition("\n")[0]
    job = replace(job, last_error=error)
    if job.state in ENDED:
        return job
    latest = (rest.checkpoints(job.job_id).get("latest") or {}).get("completed") or {}
    job = replace(
        job,
        checkpoint_ms=latest.get("latest_ack_timestamp"),
        restarts=rest.restarts(job.job_id),
    )
    if job.kind != "ingest":
        return job
    connected = rest.receives_from_brokers(job.job_id)
    # without brokers the metric keeps the lag of the last answer
    lag = None if connected is False else rest.source_lag(job.job_id)
    return replace(job, connected=connected, lag=lag)
