"""The status of a project, gathered without starting anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.definitions import CompiledView
from paimon_features.flink.stream_jobs import StreamJob, list_stream_jobs
from paimon_features.lake.marked_records import lost_records
from paimon_features.lake.ownership.claims import BEAT_S, SILENT_BEATS
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project
from paimon_features.project.status.job_status import (
    REST_TIMEOUT_S,
    JobStatus,
    LeaseStatus,
    attentions,
    read_jobs,
    read_leases,
)
from paimon_features.project.status.tables import RejectedStatus, TableReader, TableStatus
from paimon_features.project.status.views import OnlineReader, OnlineStatus, ViewStatus

FORMAT = 1
"""The version of the JSON document; fields are added to a version, never changed or removed."""


@dataclass(frozen=True, slots=True)
class ProjectStatus:
    """One look at a project at ``time_ms`` (UTC).

    ``attention`` has a sentence for everything that needs attention, and is empty if nothing does.
    """

    project: str
    time_ms: int
    attention: tuple[str, ...]
    online: OnlineStatus | None
    jobs: tuple[JobStatus, ...]
    stream_jobs: tuple[StreamJob, ...]
    views: tuple[ViewStatus, ...]
    rejected: tuple[RejectedStatus, ...]
    leases: tuple[LeaseStatus, ...]
    tables: tuple[TableStatus, ...]

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, table, utc

        views = [
            (v.view, v.generation, v.committed_snapshot, v.applied_snapshot, utc(v.high_mark_ms),
             v.behind_s, v.problem or ("STALE" if v.stale else ""))
            for v in self.views
        ]  # fmt: skip
        jobs = [(j.view, j.generation, j.kind, j.state, utc(j.since_ms)) for j in self.jobs]
        streams = [
            (j.kind, j.name, j.state, utc(j.since_ms), j.restarts, j.last_error)
            for j in self.stream_jobs
        ]
        tables = [(t.table, t.rows, t.files, t.bytes, utc(t.newest_ms)) for t in self.tables]
        parts = [
            table(((text,) for text in self.attention), ("needs attention",)),
            table(views, ("view", "generation", "committed", "online", "newest event",
                          "behind, s", "")),
            table(jobs, ("job of", "generation", "kind", "state", "since")),
            table(streams, ("kind", "ingestion or iteration", "state", "since", "restarts",
                            "last error")),
            table(tables, ("table", "rows", "files", "bytes", "newest commit")),
        ]  # fmt: skip
        filled = (self.attention, views, jobs, streams, tables)
        return card(
            f"Project {self.project}",
            *(part for part, rows in zip(parts, filled, strict=True) if rows),
            note=f"{utc(self.time_ms)} UTC" + ("" if self.attention else "; all is well"),
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the command."""
        return {"format": FORMAT, "ok": not self.attention, **asdict(self)}


class StatusReader:
    """Reads the status of a project, again and again; a repeated read costs only what changed.

    ``online`` is false to leave the online store out.
    """

    def __init__(self, project: Project, *, online: bool = True, clock: Clock = now_ms) -> None:
        self._project, self._online, self._clock = project, online, clock
        self._tables = TableReader(project.lake)
        self._store = OnlineReader(project.config)

    def read(self) -> ProjectStatus:
        """Return the status now.

        What cannot be read is reported in its place. Only a warehouse that cannot be read at all
        raises.
        """
        project, lake, time_ms = self._project, self._project.lake, self._clock()
        problems: list[str] = []
        views: dict[str, CompiledView] = {}
        try:
            defined = project.definitions.views
            views = {name: view.compiled for name, view in defined.items()}
        except PaimonFeaturesError as error:
            problems.append(f"the definitions cannot be read: {error}")
        jobs: list[JobStatus] = []
        try:
            problems += [str(record.error()) for record in lost_records(lake)]
            config = project.config
            jobs = read_jobs(lake, job_state_folder(config.state_dir, config.flink))
        except PaimonFeaturesError as error:
            problems.append(f"the jobs cannot be read: {error}")
        streams: list[StreamJob] = []
        try:
            streams = list_stream_jobs(lake, project.config.state_dir, REST_TIMEOUT_S)
        except PaimonFeaturesError as error:
            problems.append(f"the ingestion and iteration jobs cannot be read: {error}")
        leases: list[LeaseStatus] = []
        try:
            leases = read_leases(lake, time_ms)
        except PaimonFeaturesError as error:
            problems.append(f"the leases cannot be read: {error}")
        online: OnlineStatus | None = None
        view_states: list[ViewStatus] = []
        try:
            online, view_states = self._store.read(lake, views, self._online, time_ms)
        except PaimonFeaturesError as error:  # of a remote warehouse without a side folder, say
            problems.append(f"the generations of views cannot be read: {error}")
        tables, rejected = self._tables.sizes(), self._tables.rejected()
        if online is not None and online.error is not None:
            problems.append(f"online store {online.where}: {online.error}")
        problems += attentions(jobs, leases, BEAT_S * SILENT_BEATS, time_ms)
        problems += [text for job in streams if (text := job.attention(time_ms)) is not None]
        problems += [view.attention for view in view_states if view.attention is not None]
        problems += [f"table {t.table}: {t.error}" for t in tables if t.error]
        problems += [f"table {t.table}: {t.error}" for t in rejected if t.error]
        return ProjectStatus(
            project.name,
            time_ms,
            tuple(dict.fromkeys(problems)),
            online,
            tuple(jobs),
            tuple(streams),
            tuple(view_states),
            tuple(rejected),
            tuple(leases),
            tuple(tables),
        )

    def close(self) -> None:
        """Close the connection to the online store."""
        self._store.close()
