"""The screen of ``status``."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.cli._options import time_text
from paimon_features.cli._tables import table_lines
from paimon_features.cli._values import size_text
from paimon_features.flink.stream_jobs import StreamJob
from paimon_features.project.status import ProjectStatus
from paimon_features.project.status.job_status import JobStatus, LeaseStatus
from paimon_features.project.status.tables import RejectedStatus, TableStatus
from paimon_features.project.status.views import OnlineStatus, ViewStatus


def screen(status: ProjectStatus) -> list[str]:
    """Return the lines of the screen."""
    now_ms = status.time_ms
    lines = [f"project {status.project} at {time_text(now_ms)}", *_online(status.online)]
    for title, headings, rows in (
        ("jobs", _JOBS, [_job(job, now_ms) for job in status.jobs]),
        (
            "ingestion and iteration jobs",
            STREAM_JOBS,
            [stream_job(job, now_ms) for job in status.stream_jobs],
        ),
        ("views", _VIEWS, [_view(view, now_ms) for view in status.views]),
        ("rejected and held events", _REJECTED, [_rejected(table) for table in status.rejected]),
        ("leases", _LEASES, [_lease(lease, now_ms) for lease in status.leases]),
        ("tables", _TABLES, [_table(table, now_ms) for table in status.tables]),
    ):
        lines += ["", title]
        lines += table_lines([headings, *rows], "  ") if rows else ["  none"]
    if not status.attention:
        return [*lines, "", "nothing needs attention"]
    return [*lines, "", "needs attention", *(f"  - {text}" for text in status.attention)]


def age(since_ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was.

    >>> age(None, 0), age(9_000, 10_000), age(0, 5_400_000), age(0, 864_000_000)
    ('-', '1 s', '90 min', '10 d')
    """
    if since_ms is None:
        return "-"
    seconds = max(0, now_ms - since_ms) / 1_000
    for limit, unit, size in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _online(online: OnlineStatus | None) -> list[str]:
    if online is None:
        return ["online store: not looked at"]
    if online.error is not None:
        return [f"online store {online.where}: {online.error}"]
    policies = ", ".join(online.maxmemory_policies) or "unknown"
    return [
        f"online store {online.where}: responds, maxmemory-policy {policies}, "
        f"{online.evicted_keys:,} evicted keys"
    ]


_JOBS = (
    "VIEW", "GEN", "KIND", "STATE", "WHERE", "RUNS FOR", "CHECKPOINT", "AGE", "RESTARTS",
    "EVENTS LAG",
)  # fmt: skip


def _job(job: JobStatus, now_ms: int) -> Sequence[str]:
    return (
        job.view,
        str(job.generation),
        job.kind,
        job.state,
        job.where,
        age(job.since_ms, now_ms),
        _number(job.checkpoint),
        age(job.checkpoint_ms, now_ms),
        _number(job.restarts),
        "-" if job.lag_snapshots is None else f"{job.lag_snapshots:,} snapshots",
    )


STREAM_JOBS = (
    "KIND", "NAME", "STATE", "WHERE", "SINCE (UTC)", "WRITES", "COMMIT", "RESTARTS", "LAG", "ERROR",
)  # fmt: skip


def stream_job(job: StreamJob, now_ms: int) -> Sequence[str]:
    """Return the cells of an ingestion or iteration job."""
    running = job.kind == "ingest" and job.state in ("RUNNING", "RESTARTING", "UNKNOWN")
    unknown = "unknown" if running else "-"
    return (
        job.kind,
        job.name,
        job.state,
        job.where,
        _time(job.since_ms),
        ", ".join(job.writes) or "-",
        age(job.committed_ms, now_ms),
        _number(job.restarts),
        unknown if job.lag is None else f"{job.lag:,} messages",
        job.last_error or job.detail or "-",
    )


_VIEWS = (
    "VIEW", "GEN", "COMMITTED", "AGE", "APPLIED", "LAG", "BEHIND", "LOW MARK", "HIGH MARK", "STATE"
)  # fmt: skip


def _view(view: ViewStatus, now_ms: int) -> Sequence[str]:
    applied = _number(view.applied_snapshot)
    if view.newest_applied_snapshot not in (None, view.applied_snapshot):
        applied += f" to {view.newest_applied_snapshot}"
    unknown = "not looked at" if view.applied_snapshot is None else "fresh"
    return (
        view.view,
        _number(view.generation),
        _number(view.committed_snapshot),
        age(view.committed_ms, now_ms),
        applied,
        _number(view.lag_snapshots),
        age(view.current_ms, now_ms),
        _time(view.low_mark_ms),
        _time(view.high_mark_ms),
        view.problem or ("stale" if view.stale else "behind" if view.behind else unknown),
    )


_REJECTED = ("TABLE", "ROWS", "REJECTED", "HELD", "RELEASED", "REASONS")


def _rejected(rejected: RejectedStatus) -> Sequence[str]:
    if rejected.error is not None:
        return (rejected.table, "-", "-", "-", "-", rejected.error)
    if rejected.rejected is None:
        return (rejected.table, f"{rejected.rows:,}", "-", "-", "-", "too many rows to count")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejected.rejected.items())
    total = sum(rejected.rejected.values())
    counts = (rejected.rows, total, rejected.held, rejected.released)
    return (rejected.table, *map(_number, counts), reasons)


_LEASES = ("TABLE", "OWNER", "TO", "FOR", "HEARTBEAT", "STATE")


def _lease(lease: LeaseStatus, now_ms: int) -> Sequence[str]:
    beat = "-" if lease.heartbeat_age_s is None else f"{lease.heartbeat_age_s:.0f} s ago"
    held = age(lease.since_ms, now_ms)
    return (lease.table, lease.owner, lease.purpose, held, beat, lease.state)


_TABLES = ("TABLE", "FILES", "SIZE", "ROWS", "SNAPSHOTS", "TAGS", "NEWEST", "AGE", "")


def _table(table: TableStatus, now_ms: int) -> Sequence[str]:
    if table.error is not None:
        return (table.table, *("-" for _ in _TABLES[2:]), table.error)
    return (
        table.table,
        f"{table.files:,}",
        size_text(table.bytes),
        f"{table.rows:,}",
        f"{table.snapshots:,}",
        f"{table.tags:,}",
        _number(table.newest_snapshot),
        age(table.newest_ms, now_ms),
        "",
    )


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else time_text(time_ms).removesuffix(" UTC")
