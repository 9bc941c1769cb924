"""The record of the files that were ingested into a source, so that none enters twice.

One JSON file per source next to the tables. A run is recorded before its job starts and closed
after its commits; one that a crash left open is finished or dropped by the next run: the tables
show which of the two commits was made. A job on a cluster is recorded before it is submitted as
well: it may outlive the process that submits it.

A ledger that was lost, or is older than the tables, is refused: its mark in the events table says
that there was one, and its snapshots name the runs that made them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paimon_features.core.errors import ConfigurationError, RecordLostError
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.long_lines import MAX_LINE_BYTES
from paimon_features.ingest.runs import IngestRun
from paimon_features.ingest.stream_records import StreamRecord
from paimon_features.lake import Lake, read_arrow
from paimon_features.lake.marked_records import Record
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.snapshots import read_snapshot_file, snapshot_ids
from paimon_features.lake.ownership.commit_lock import commit_lock

_FILE_RUN = re.compile("ingest-([0-9a-f]{12})_[0-9a-f-]{36}")
"""The commit user of a run over files."""


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
    max_line_bytes: int = MAX_LINE_BYTES
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

    @property
    def input_kind(self) -> str:
        """The command of ``ingest`` that started it; either of a stream's can stop it."""
        return "files" if self.checkpoints is None else "topic"


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
        file = f"{lake.database}.{source.name}.json"
        self.record = Record(lake, "ingests", file, source.name, source.table)

    def runs(self) -> list[LedgerRun]:
        """Return all finished runs, in order."""
        return [_run(raw) for raw in self._read()["runs"]]

    def open_run(self) -> LedgerRun | None:
        """Return the run that was started and not finished, because the host or process died."""
        raw = self._read()["open"]
        return None if raw is None else _run(raw)

    def check(self) -> None:
        """Raise RecordLostError if the ledger is missing, or the tables contain runs unknown to it.

        Runs whose snapshots have expired are not seen in the tables.
        """
        unknown = self._unknown_runs(self._read())
        if unknown:
            raise RecordLostError(
                f"source {self.source.name!r}: {self.record.path} does not contain the run "
                f"{', '.join(unknown)}, which committed to {self.source.table}: it is missing or "
                "older than the table, and the files of that run could be ingested twice. Restore "
                "it from the same backup as the tables, or name the files that were ingested: "
                f"'paimon-features ingest files {self.source.name} FILES --mark-ingested'"
            )

    def adopt(self, files: Iterable[InputFile], now_ms: int) -> FileChoice:
        """Record files as ingested without reading them, and accept the loss of the ledger.

        Returns the files that were not recorded before, and the others.
        """
        lost = self.record.is_lost()
        if lost:
            self.record.accept_loss()
        choice = self.choose(files)
        state = self._read()
        adopted = [*state.get("adopted", []), *self._unknown_runs(state)]
        # what streams had committed was lost as well
        streams_lost = lost or state.get("streams_lost", False)
        self._write({**state, "adopted": adopted, "streams_lost": streams_lost})
        if choice.new:
            run = self.begin(choice.new, {}, now_ms)
            self.finish(run, None, None)
        return choice

    def choose(self, files: Iterable[InputFile], again: bool = False) -> FileChoice:
        """Choose the files to ingest; with ``again`` all of them.

        Files are identified by content, so a copy under another name counts as ingested.

        Raises
        ------
        ConfigurationError
            For a file whose content has changed since it was ingested: its old rows would be
            duplicated.
        """
        by_hash = {file.sha256: (run, file) for run in self.runs() for file in run.files}
        paths = {file.path: run for run in self.runs() for file in run.files}
        new: dict[str, InputFile] = {}  # by path or, where content decides, by hash
        skipped: list[tuple[InputFile, str]] = []
        for file in files:
            if again:
                new[str(file.path)] = file
            elif file.sha256 in by_hash:
                run, old = by_hash[file.sha256]
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

    def begin(
        self,
        files: Iterable[InputFile],
        mapping: dict[str, str],
        now_ms: int,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> LedgerRun:
        """Record the start of a run. Its time is later than those of all runs before."""
        state = self._read()
        assert state["open"] is None, "the open run must be settled first"
        last = max((raw["time_ms"] for raw in state["runs"]), default=0)
        run = LedgerRun(
            secrets.token_hex(6),
            max(now_ms, last + 1),
            tuple(map(LedgerFile.of, files)),
            mapping,
            max_line_bytes,
        )
        self._write({**state, "open": asdict(run)})
        return run

    def finish(
        self, run: LedgerRun, events_snapshot: int | None, rejected_snapshot: int | None
    ) -> None:
        """Record that both commits of the run are made."""
        done = replace(run, events_snapshot=events_snapshot, rejected_snapshot=rejected_snapshot)
        runs = [*self._read()["runs"], asdict(done)]
        self._write({**self._read(), "open": None, "runs": runs})

    def forget(self) -> None:
        """Drop the open run: none of its commits was made."""
        self._write({**self._read(), "open": None})

    def forget_uncommitted(self) -> list[str]:
        """Drop the runs whose rows are in neither table any more; returns the files of these.

        For a table that was rolled back. Runs without any commit stay: their files have no rows.
        """
        gone = [
            run
            for run in self.runs()
            if (run.events_snapshot, run.rejected_snapshot) != (None, None)
            and self.committed(run) == (False, False)
        ]
        if gone:
            ids = {run.id for run in gone}
            state = self._read()
            left = [raw for raw in state["runs"] if raw["id"] not in ids]
            self._write({**state, "runs": left})
        return [file.path for run in gone for file in run.files]

    def cluster_job(self) -> ClusterJob | None:
        """Return the job that was last submitted to a cluster; it may have ended since."""
        raw = self._read().get("job")
        return None if raw is None else ClusterJob(**raw)

    def send(self, job: ClusterJob) -> None:
        """Record that a job is about to be submitted to a cluster."""
        self._write({**self._read(), "job": asdict(job)})

    def stream(self, stream_id: str) -> StreamRecord | None:
        """Return the record of a stream, None before its first job."""
        raw = self._read().get("streams", {}).get(stream_id)
        return None if raw is None else StreamRecord.of(raw)

    @property
    def streams_lost(self) -> bool:
        """Whether the loss of a ledger was accepted, which may have had records of streams."""
        return bool(self._read().get("streams_lost", False))

    def record_stream(self, record: StreamRecord) -> None:
        """Record a job of a stream that is about to start."""
        state = self._read()
        streams = {**state.get("streams", {}), record.id: record.to_document()}
        self._write({**state, "streams": streams})

    def settle_streams(self) -> None:
        """Record what the jobs of streams have committed, while their snapshots show it.

        Called by whoever owns the tables, before it writes to them or lets snapshots expire.
        """
        state = self._read()
        before = {name: StreamRecord.of(raw) for name, raw in state.get("streams", {}).items()}
        after = {name: record.settled(self.lake) for name, record in before.items()}
        if after != before:
            streams = {name: record.to_document() for name, record in after.items()}
            self._write({**state, "streams": streams})

    def committed(self, run: LedgerRun) -> tuple[bool, bool]:
        """Return True if the run's events, and its rejected rows, are in their tables.

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

    def _write(self, state: dict[str, Any]) -> None:
        """Replace the ledger, unless the events table was taken over: it is the next owner's."""
        with commit_lock(
            self.lake, self.source.table, f"writing the ledger of {self.source.name!r}"
        ):
            self.record.write(state)

    def _read(self) -> dict[str, Any]:
        state = self.record.read() or {}
        created_ms = self._created_ms()
        if state.get("created_ms", created_ms) != created_ms:
            # of a table that was dropped: its files are not in this one
            state = {"job": state.get("job")}
        return {"open": None, "runs": [], **state, "created_ms": created_ms}

    def _created_ms(self) -> int | None:
        table = self.source.table
        return table_history.created_ms(self.lake, table) if self.lake.exists(table) else None

    def _unknown_runs(self, state: dict[str, Any]) -> list[str]:
        """Return the runs that committed events and are not in the ledger, in order."""
        recorded = [*state["runs"], *([state["open"]] if state["open"] else [])]
        recorded_ids = {run["id"] for run in recorded}.union(state.get("adopted", []))
        table = self.source.table
        folder = f"{self.lake.path(table)}/snapshot"
        snapshots = (
            read_snapshot_file(self.lake, folder, i) for i in snapshot_ids(self.lake, table)
        )
        users = (snapshot.commit_user for snapshot in snapshots if snapshot is not None)
        run_ids = dict.fromkeys(match[1] for match in map(_FILE_RUN.fullmatch, users) if match)
        return [run for run in run_ids if run not in recorded_ids]


def _run(raw: dict[str, Any]) -> LedgerRun:
    files = tuple(LedgerFile(**file) for file in raw["files"])
    return LedgerRun(**{**raw, "files": files})
