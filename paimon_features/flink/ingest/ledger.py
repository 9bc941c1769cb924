"""The record of the files that were ingested into a source, so that none enters twice.

One JSON file per source next to the tables. A run is recorded before its job starts and closed
after its commits; one that a crash left open is finished or dropped by the next run: the tables
show which of the two commits was made. A job on a cluster is recorded before it is submitted as
well: it may outlive the process that submits it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paimon_features.definitions import EventSource
from paimon_features.errors import ConfigurationError
from paimon_features.flink.sql.ingest import IngestRun
from paimon_features.flink.sql.inputs import InputFile
from paimon_features.tables import Lake, read_arrow
from paimon_features.tables.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A file as of its ingestion."""

    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, file: InputFile) -> LedgerFile:
        return cls(str(file.path), file.size, file.sha256)


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """A run over some files; the snapshots are those of its commits, None without one."""

    id: str
    time_ms: int
    files: tuple[LedgerFile, ...]
    mapping: dict[str, str] = field(default_factory=dict)
    events_snapshot: int | None = None
    rejected_snapshot: int | None = None

    @property
    def run(self) -> IngestRun:
        return IngestRun(self.id, self.time_ms)


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job that was submitted to a cluster: the cluster's REST interface, and the job's id.

    ``checkpoints`` is the folder of a stream's checkpoints.
    """

    rest_url: str
    job_id: str
    checkpoints: str | None = None

    def __str__(self) -> str:
        return f"job {self.job_id} at {self.rest_url}"


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Which of the requested files are new, and why the others are skipped."""

    new: tuple[InputFile, ...]
    skipped: tuple[tuple[InputFile, str], ...]


class IngestLedger:
    """The record of one source. Only the owner of the leases of its tables reads and changes it."""

    def __init__(self, lake: Lake, source: EventSource) -> None:
        self.lake = lake
        self.source = source
        self.path: Path = lake.side_folder / "ingests" / f"{lake.database}.{source.name}.json"

    def runs(self) -> list[LedgerRun]:
        """All finished runs, in order."""
        return [_run(raw) for raw in self._read()["runs"]]

    def open_run(self) -> LedgerRun | None:
        """The run that was started and not finished, because the host or process died."""
        raw = self._read()["open"]
        return None if raw is None else _run(raw)

    def choose(self, files: Iterable[InputFile], again: bool = False) -> FileChoice:
        """Choose the files to ingest; with ``again`` all of them.

        Files are identified by content, so a copy under another name counts as ingested.

        Raises
        ------
        ConfigurationError
            For a file whose content has changed since it was ingested: its old rows would be
            duplicated.
        """
        known = {file.sha256: (run, file) for run in self.runs() for file in run.files}
        paths = {file.path: run for run in self.runs() for file in run.files}
        new: dict[str, InputFile] = {}  # by path or, where content decides, by hash
        skipped: list[tuple[InputFile, str]] = []
        for file in files:
            if again:
                new[str(file.path)] = file
            elif file.sha256 in known:
                run, old = known[file.sha256]
                copy = "" if old.path == str(file.path) else f" as {old.path}"
                skipped.append((file, f"ingested before{copy}, by run {run.id}"))
            elif file.sha256 in new:
                skipped.append((file, f"the same content as {new[file.sha256].path}"))
            elif str(file.path) in paths:
                raise ConfigurationError(
                    f"{file.path} has changed since run {paths[str(file.path)].id} ingested it; "
                    "put new rows into a new file, or ingest the complete file with --again (rows "
                    "that are in both are duplicated)"
                )
            else:
                new[file.sha256] = file
        return FileChoice(tuple(new.values()), tuple(skipped))

    def begin(self, files: Iterable[InputFile], mapping: dict[str, str], now_ms: int) -> LedgerRun:
        """Record the start of a run. Its time is later than those of all runs before."""
        state = self._read()
        assert state["open"] is None, "the open run must be settled first"
        last = max((raw["time_ms"] for raw in state["runs"]), default=0)
        run = LedgerRun(
            secrets.token_hex(6),
            max(now_ms, last + 1),
            tuple(map(LedgerFile.of, files)),
            mapping,
        )
        write_json(self.path, {**state, "open": asdict(run)})
        return run

    def finish(
        self, run: LedgerRun, events_snapshot: int | None, rejected_snapshot: int | None
    ) -> None:
        """Record that both commits of the run are made."""
        done = replace(run, events_snapshot=events_snapshot, rejected_snapshot=rejected_snapshot)
        runs = [*self._read()["runs"], asdict(done)]
        write_json(self.path, {**self._read(), "open": None, "runs": runs})

    def forget(self) -> None:
        """Drop the open run: none of its commits was made."""
        write_json(self.path, {**self._read(), "open": None})

    def cluster_job(self) -> ClusterJob | None:
        """The job that was last submitted to a cluster; it may have ended since."""
        raw = self._read().get("job")
        return None if raw is None else ClusterJob(**raw)

    def send(self, job: ClusterJob) -> None:
        """Record that a job is about to be submitted to a cluster."""
        write_json(self.path, {**self._read(), "job": asdict(job)})

    def committed(self, run: LedgerRun) -> tuple[bool, bool]:
        """Whether the run's events, and its rejected rows, are in their tables.

        Determined from the rows, since snapshots expire.
        """
        events = read_arrow(
            self.lake,
            self.source.table,
            columns=["ingest_time_ms"],
            where={"ingest_time_ms": [run.time_ms]},
        )
        rejected = read_arrow(
            self.lake,
            self.source.rejected_table,
            columns=["ingest_id"],
            where={"ingest_id": [run.id]},
        )
        return events.num_rows > 0, rejected.num_rows > 0

    def _read(self) -> dict[str, Any]:
        return read_json(self.path) or {"open": None, "runs": []}


def _run(raw: dict[str, Any]) -> LedgerRun:
    files = tuple(LedgerFile(**file) for file in raw["files"])
    return LedgerRun(**{**raw, "files": files})
