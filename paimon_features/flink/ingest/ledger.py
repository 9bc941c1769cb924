"""Which files were ingested into a source, so that no file enters twice.

One JSON file per source beside the tables. A run is written down before its job starts and
closed after its commits; what a crash left open is finished, or forgotten, by the next run: the
tables themselves say which of the two commits was made. A job that is sent to a cluster is
written down before it, too: it may go on when the process that sent it is gone.
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
    """A file as it was when it was ingested."""

    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, file: InputFile) -> LedgerFile:
        return cls(str(file.path), file.size, file.sha256)


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """A run over some files; the snapshots are those of its commits, None where it made none."""

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
    """A job that was sent to a cluster: the cluster's REST interface, and the job's id.

    ``checkpoints`` is the folder in which a stream keeps its own.
    """

    rest_url: str
    job_id: str
    checkpoints: str | None = None

    def __str__(self) -> str:
        return f"job {self.job_id} at {self.rest_url}"


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Which of the wanted files are new, and why the others are not."""

    new: tuple[InputFile, ...]
    skipped: tuple[tuple[InputFile, str], ...]


class IngestLedger:
    """The record of one source. Read and changed only by who holds the leases of its tables."""

    def __init__(self, lake: Lake, source: EventSource) -> None:
        self.lake = lake
        self.source = source
        self.path: Path = lake.side_folder / "ingests" / f"{lake.database}.{source.name}.json"

    def runs(self) -> list[LedgerRun]:
        """All finished runs, in their order."""
        return [_run(raw) for raw in self._read()["runs"]]

    def open_run(self) -> LedgerRun | None:
        """The run that was begun and not finished: the machine or process died under it."""
        raw = self._read()["open"]
        return None if raw is None else _run(raw)

    def choose(self, files: Iterable[InputFile], again: bool = False) -> FileChoice:
        """Which files to ingest; ``again`` takes them all.

        A file counts as ingested by its content, so a copy under another name does, too.

        Raises
        ------
        ConfigurationError
            For a file that has another content than when it was ingested: its old rows would
            come a second time.
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
                    "put new rows into a new file, or take the whole file with --again (rows that "
                    "are in both come twice)"
                )
            else:
                new[file.sha256] = file
        return FileChoice(tuple(new.values()), tuple(skipped))

    def begin(self, files: Iterable[InputFile], mapping: dict[str, str], now_ms: int) -> LedgerRun:
        """Write down that a run starts. Its time is later than any run's before."""
        state = self._read()
        assert state["open"] is None, "the open run has to be settled first"
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
        """Write down that both commits of the run are made."""
        done = replace(run, events_snapshot=events_snapshot, rejected_snapshot=rejected_snapshot)
        runs = [*self._read()["runs"], asdict(done)]
        write_json(self.path, {**self._read(), "open": None, "runs": runs})

    def forget(self) -> None:
        """Drop the open run: none of its commits was made."""
        write_json(self.path, {**self._read(), "open": None})

    def cluster_job(self) -> ClusterJob | None:
        """The job that was sent to a cluster last; it may have ended since."""
        raw = self._read().get("job")
        return None if raw is None else ClusterJob(**raw)

    def send(self, job: ClusterJob) -> None:
        """Write down that a job is about to be sent to a cluster."""
        write_json(self.path, {**self._read(), "job": asdict(job)})

    def committed(self, run: LedgerRun) -> tuple[bool, bool]:
        """Whether the run's events, and its rejected rows, are in their tables.

        Asked of the rows, not of the snapshots: those expire.
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
