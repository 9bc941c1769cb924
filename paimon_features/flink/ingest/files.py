"""Ingestion of files: each once, all rows of a run in one commit, also after interruptions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.clock import now_ms
from paimon_features.definitions import EventSource
from paimon_features.errors import ConfigurationError
from paimon_features.flink.ingest.job import IngestJob, OnIngestProgress
from paimon_features.flink.ingest.ledger import FileChoice, LedgerRun
from paimon_features.flink.ingest.long_lines import MAX_LINE_BYTES, without_long_lines
from paimon_features.flink.sql.ingest import IngestRun, file_statements
from paimon_features.flink.sql.input_columns import group_files
from paimon_features.flink.sql.inputs import InputFile, find_files, inspect_file
from paimon_features.tables import Lake, latest_snapshot, read_arrow
from paimon_features.tables.lease import acquire
from paimon_features.tables.reader import snapshots
from paimon_features.tables.release import release_due

SHORT_LIVED_BYTES = 16 << 20
"""Files of at most this size are read before Java's second compiler pays off."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of a run. ``rejected`` counts rows by reason, ``examples`` has one of each.

    ``ignored_columns`` are in the files but not in the source; ``absent_columns`` in the source
    but not in the first rows of JSON files. ``finished_run`` was interrupted earlier and finished
    first; ``forgotten_files`` are those of an interrupted run that had committed nothing, and are
    not part of this one. ``released`` counts events that were held for future timestamps.
    """

    run_id: str | None
    files: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    ignored_columns: tuple[str, ...] = ()
    absent_columns: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    events_snapshot: int | None = None
    finished_run: str | None = None
    forgotten_files: tuple[str, ...] = ()
    released: int = 0

    def to_document(self) -> dict[str, object]:
        """As ``paimon-features ingest --json`` prints it."""
        return {
            "run_id": self.run_id,
            "rows": self.accepted,
            "rejected": dict(self.rejected),
            "examples": dict(self.examples),
            "seconds": round(self.elapsed_s, 3),
            "files": self.files,
            "skipped": dict(self.skipped),
            "ignored_columns": self.ignored_columns,
            "absent_columns": self.absent_columns,
            "events_snapshot": self.events_snapshot,
            "finished_run": self.finished_run,
            "forgotten_files": self.forgotten_files,
            "released": self.released,
        }


def ingest_files(
    lake: Lake,
    source: EventSource,
    paths: Iterable[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    state_dir: Path,
    again: bool = False,
    parallelism: int = 2,
    cluster: str | None = None,
    report: OnIngestProgress | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> IngestResult:
    """Load files into the source's events table, each file once.

    The rows of all files enter in one commit; rows that cannot be events are written to the
    rejected table, with the reason. A run that was interrupted between the two commits is
    finished first; one that had committed nothing is dropped. Files that were ingested before
    are skipped, unless ``again``.

    Parameters
    ----------
    mapping
        Column of the source -> name in the files, where they differ.
    state_dir
        The project's state folder, for logs.
    cluster
        ``host:port`` of a session cluster that sees the same files; None runs the job here.
    report
        Called about every second while the job runs.
    max_line_bytes
        Longer lines of text files are rejected, with their first 1,000 bytes.

    Raises
    ------
    ConfigurationError
        For an invalid path, header or column, or a file that has changed.
    UnknownNameError
        If the source was not applied.
    OwnershipError
        If another job or process writes one of the two tables.
    JobError
        If the job fails; then nothing was committed, or the next run finishes it.
    RecordLostError
        If the ledger of the source was lost, or is older than its table.
    """
    job = IngestJob(lake, source, state_dir, parallelism, cluster, report)
    job.check()
    job.ledger.check()
    inspected = [inspect_file(path) for path in find_files(paths)]
    choice = job.ledger.choose(inspected, again)
    # problems of columns are reported before a JVM starts
    group_files(choice.new, source, mapping or {})
    if job.ledger.open_run() is None and not choice.new:
        return IngestResult(None, (), _reasons(choice))
    with ExitStack() as stack:
        job.hold(stack, short_lived=sum(file.size for file in choice.new) <= SHORT_LIVED_BYTES)
        finished, forgotten = _settle(job)
        choice = job.ledger.choose(inspected, again)
        left = tuple(path for path in forgotten if path not in {str(f.path) for f in choice.new})
        if not choice.new:
            reasons = _reasons(choice)
            return IngestResult(None, (), reasons, finished_run=finished, forgotten_files=left)
        released = release_due(lake, source, now_ms())
        # the time identifies this run's rows
        begun_ms = max(now_ms(), released.time_ms + 1)
        run = job.ledger.begin(choice.new, dict(mapping or {}), begun_ms, max_line_bytes)
        result = _run_files(job, run, choice, (True, True), finished, left)
        return replace(result, released=released.events)


def mark_ingested(lake: Lake, source: EventSource, paths: Iterable[Path]) -> FileChoice:
    """Record files as ingested without reading their rows, to rebuild a ledger that was lost.

    Returns the files that are recorded now, and those that were before. Without files, the loss
    is accepted and the ledger starts empty.

    Raises
    ------
    ConfigurationError
        For an invalid path, or a file that has changed.
    UnknownNameError
        If the source was not applied.
    OwnershipError
        If another job or process writes one of the two tables.
    """
    job = IngestJob(lake, source, Path(), 1, None, None)
    job.check()
    inspected = [inspect_file(path) for path in find_files(paths)]
    with ExitStack() as stack:
        for table in job.tables:
            stack.enter_context(acquire(lake, table, purpose="rebuild the ledger"))
        return job.ledger.adopt(inspected, now_ms())


def _run_files(
    job: IngestJob,
    run: LedgerRun,
    choice: FileChoice,
    sinks: tuple[bool, bool],
    finished: str | None = None,
    forgotten: tuple[str, ...] = (),
) -> IngestResult:
    """Run the job of a recorded run, then close the run."""
    started = time.monotonic()
    before = [_latest_id(job.lake, table) for table in job.tables]
    shown = [str(file.path) for file in choice.new[:3]]
    more = f" and {len(choice.new) - len(shown)} more" if len(choice.new) > len(shown) else ""
    doing = f"ingesting {', '.join(shown)}{more} into {job.source.name!r}"
    copies = job.state_dir / "ingest" / run.id
    with without_long_lines(choice.new, copies, run.max_line_bytes) as files:
        groups = group_files(files, job.source, run.mapping)
        job.run("batch", file_statements(job.source, groups, run.run), doing, sinks)
    (accepted, events), (bad, rejects) = (
        _commits(job.lake, table, run.run, since)
        for table, since in zip(job.tables, before, strict=True)
    )
    job.ledger.finish(run, events, rejects)
    rejected, examples = _rejected(job, run) if bad else ({}, {})
    return IngestResult(
        run.id,
        tuple(str(file.path) for file in choice.new),
        _reasons(choice),
        accepted,
        rejected,
        examples,
        tuple(dict.fromkeys(name for group in groups for name in group.ignored)),
        tuple(dict.fromkeys(name for group in groups for name in group.absent)),
        time.monotonic() - started,
        events,
        finished,
        forgotten,
    )


def _settle(job: IngestJob) -> tuple[str | None, tuple[str, ...]]:
    """Finish or drop an open run: returns the id of a finished one, or the dropped files."""
    run = job.ledger.open_run()
    if run is None:
        return None, ()
    events, rejected = job.ledger.committed(run)
    if not events and not rejected:
        job.ledger.forget()
        return None, tuple(file.path for file in run.files)
    if events and rejected:
        job.ledger.finish(run, None, None)
        return run.id, ()
    # one of two commits was made, or all rows were of one kind: write what is missing, if any
    _run_files(job, run, FileChoice(_as_they_were(run), ()), (not events, not rejected))
    return run.id, ()


def _as_they_were(run: LedgerRun) -> tuple[InputFile, ...]:
    """The files of an interrupted run; ConfigurationError if one is gone or has changed."""
    files: list[InputFile] = []
    for known in run.files:
        path = Path(known.path)
        if not path.is_file() or (file := inspect_file(path)).sha256 != known.sha256:
            raise ConfigurationError(
                f"run {run.id} was interrupted between its two commits, and its file {path} has "
                "been removed or changed since; restore it, so that the run can be finished"
            )
        files.append(file)
    return tuple(files)


def _commits(lake: Lake, table: str, run: IngestRun, since: int) -> tuple[int, int | None]:
    """Rows and last snapshot that the run committed to a table after snapshot ``since``."""
    mine = [s for s in snapshots(lake, table, since + 1) if run.made(s.commit_user)]
    rows = sum(snapshot.delta_records for snapshot in mine if snapshot.kind == "APPEND")
    return rows, (mine[-1].id if mine else None)


def _rejected(job: IngestJob, run: LedgerRun) -> tuple[dict[str, int], dict[str, str]]:
    """How many rows the run rejected by reason, most first, and one of each as an example."""
    rows = read_arrow(
        job.lake,
        job.source.rejected_table,
        columns=["reason", "detail", "origin"],
        where={"ingest_id": [run.id]},
    )
    counts = pc.value_counts(rows["reason"]).to_pylist()
    counts.sort(key=lambda entry: (-entry["counts"], entry["values"]))
    examples = {}
    for reason in (entry["values"] for entry in counts):
        row = pc.index(rows["reason"], pa.scalar(reason)).as_py()
        examples[reason] = f"{rows['detail'][row]} ({rows['origin'][row]})"
    return {entry["values"]: entry["counts"] for entry in counts}, examples


def _reasons(choice: FileChoice) -> tuple[tuple[str, str], ...]:
    return tuple((str(file.path), why) for file, why in choice.skipped)


def _latest_id(lake: Lake, table: str) -> int:
    newest = latest_snapshot(lake, table)
    return 0 if newest is None else newest.id
