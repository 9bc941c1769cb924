"""Ingestion of files: each once, all rows of a run in one commit, also after interruptions.

The steps of a run, with its two commits and what is recorded between them, are the same for every
engine, so a run that one engine began can be finished by another.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import (
    ConfigurationError,
    JobError,
    OwnershipError,
    UnknownNameError,
)
from paimon_features.core.process.flink_rest import ENDED, FlinkRest
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import EventSource, FeedbackSource
from paimon_features.ingest.input_columns import FileGroup, group_files
from paimon_features.ingest.input_files import InputFile, find_files, inspect_file
from paimon_features.ingest.ledger import FileChoice, IngestLedger, LedgerRun
from paimon_features.ingest.long_lines import MAX_LINE_BYTES, without_long_lines
from paimon_features.ingest.release import release_due
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, latest_snapshot, read_arrow
from paimon_features.lake.ownership.lease import Lease, ProcessHolder, acquire
from paimon_features.lake.reading.table_reader import snapshots

if TYPE_CHECKING:
    from paimon_features.ingest.inputs.copies import InputCopies

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

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        about = {
            "events": self.accepted,
            "seconds": self.elapsed_s,
            "files": ", ".join(self.files),
            "skipped": "; ".join(f"{path}: {why}" for path, why in self.skipped),
            "columns that the source does not have": ", ".join(self.ignored_columns),
            "keys missing from the first rows": ", ".join(self.absent_columns),
        }
        rejected = [(why, rows, self.examples.get(why, "")) for why, rows in self.rejected.items()]
        bad = (table(rejected, ("rejected because", "rows", "for example")),) if rejected else ()
        return card("Ingested", facts(about), *bad)

    def to_document(self) -> dict[str, object]:
        """Return as ``paimon-features ingest files --json`` prints it."""
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


class FileJob(ABC):
    """The job of an engine for one source; ``state_dir`` is the project's state folder."""

    def __init__(self, lake: Lake, source: EventSource, state_dir: Path) -> None:
        self.lake, self.source, self.state_dir = lake, source, state_dir
        self.ledger = IngestLedger(lake, source)
        self.leases: list[Lease] = []
        self._stack: ExitStack
        self._holder: ProcessHolder

    @property
    def tables(self) -> tuple[str, str]:
        """The events table and the one of rejected rows."""
        return self.source.table, self.source.rejected_table

    def check(self) -> None:
        """Check what can be checked before anything is started.

        Raises
        ------
        ConfigurationError
            For a feedback source.
        UnknownNameError
            If the source is not applied.
        """
        check_source(self.lake, self.source)

    def hold(self, stack: ExitStack, short_lived: bool = False) -> None:
        """Own both tables until the end of ``stack``; ``short_lived`` is for a small job.

        Raises
        ------
        OwnershipError
            If another job or process owns a table, or a job of this source still runs.
        """
        self._stack, self._holder = stack, self.owner(short_lived)
        purpose = f"ingest into {self.source.name!r}"
        self.leases = [
            stack.enter_context(acquire(self.lake, table, self._holder, purpose))
            for table in self.tables
        ]
        check_no_job(self.ledger, self.source)

    def owner(self, short_lived: bool) -> ProcessHolder:
        """Return the process that owns the tables."""
        return ProcessHolder.current()

    @abstractmethod
    def run_files(
        self,
        groups: Sequence[FileGroup],
        run: IngestRun,
        doing: str,
        sinks: tuple[bool, bool] = (True, True),
    ) -> None:
        """Write the rows of files: the events, the rejected ones, or both, each in one commit.

        A commit's user is ``run.commit_user_prefix``, an underscore and a UUID. The same files give
        the same rows, whichever engine reads them. Errors name ``doing``.

        Raises
        ------
        JobError
            If a file cannot be read. Nothing is committed then.
        LeaseLostError
            If the tables were taken over.
        """


def _inspected(path: Path, copies: InputCopies | None) -> InputFile:
    if copies is not None and copies.handles(path):
        return copies.inspect(path)
    return inspect_file(path)


def check_source(lake: Lake, source: EventSource) -> None:
    """Raise ConfigurationError for a feedback source, UnknownNameError for one not applied."""
    if isinstance(source, FeedbackSource):
        raise ConfigurationError(
            f"source {source.name!r} is feedback, which trainers write by FeedbackWriter; "
            "ingest takes an EventSource"
        )
    for table in (source.table, source.rejected_table):
        if not lake.exists(table):
            raise UnknownNameError(
                f"source {source.name!r} has no table {table!r} yet; "
                "'paimon-features apply' creates it"
            )


def check_no_job(ledger: IngestLedger, source: EventSource) -> None:
    """Raise OwnershipError if a job of the source still runs on a cluster.

    Its client may have been killed before it transferred the leases to the job.
    """
    sent = ledger.cluster_job()
    if sent is None:
        return
    state = None
    with suppress(JobError):  # the cluster no longer exists
        state = FlinkRest(sent.rest_url).state(sent.job_id)
    if state is not None and state not in ENDED:
        raise OwnershipError(
            f"{sent} ingests into {source.name!r}, it is {state}; wait for its end, "
            f"or stop it by 'paimon-features ingest {sent.input_kind} {source.name} --stop'"
        )


def ingest_by(
    job: FileJob,
    paths: Iterable[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    max_line_bytes: int = MAX_LINE_BYTES,
    copies: InputCopies | None = None,
) -> IngestResult:
    """Load files into the events table of the job's source, each file once.

    The rows of all files enter in one commit; rows that cannot be events are written to the
    rejected table, with the reason. A run that was interrupted between the two commits is
    finished first; one that had committed nothing is dropped. Files that were ingested before
    are skipped, unless ``again``.

    Parameters
    ----------
    mapping
        Column of the source -> name in the files, where they differ.
    max_line_bytes
        Longer lines of text files are rejected, with their first 1,000 bytes.
    copies
        What reads inputs in other forms than those of ``ingest.input_files``, from copies.

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
    job.check()
    job.ledger.check()
    input_paths = find_files(paths) if copies is None else copies.find(paths)
    inspected = [_inspected(path, copies) for path in input_paths]
    choice = job.ledger.choose(inspected, again)
    # problems of columns are reported before an engine starts
    group_files(choice.new, job.source, mapping or {})
    if job.ledger.open_run() is None and not choice.new:
        return IngestResult(None, (), _reasons(choice))
    with ExitStack() as stack:
        job.hold(stack, short_lived=sum(file.size for file in choice.new) <= SHORT_LIVED_BYTES)
        job.ledger.settle_streams()
        finished, forgotten = _settle(job, copies)
        choice = job.ledger.choose(inspected, again)
        left = tuple(path for path in forgotten if path not in {str(f.path) for f in choice.new})
        if not choice.new:
            reasons = _reasons(choice)
            return IngestResult(None, (), reasons, finished_run=finished, forgotten_files=left)
        released = release_due(job.lake, job.source, now_ms())
        # the time identifies this run's rows
        begun_ms = max(now_ms(), released.time_ms + 1)
        run = job.ledger.begin(choice.new, dict(mapping or {}), begun_ms, max_line_bytes)
        result = _run_files(job, run, choice, (True, True), finished, left, copies)
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
    check_source(lake, source)
    inspected = [inspect_file(path) for path in find_files(paths)]
    with ExitStack() as stack:
        for table in (source.table, source.rejected_table):
            stack.enter_context(acquire(lake, table, purpose="rebuild the ledger"))
        return IngestLedger(lake, source).adopt(inspected, now_ms())


def _run_files(
    job: FileJob,
    run: LedgerRun,
    choice: FileChoice,
    sinks: tuple[bool, bool],
    finished: str | None = None,
    forgotten: tuple[str, ...] = (),
    copies: InputCopies | None = None,
) -> IngestResult:
    """Run the job of a recorded run, then close the run."""
    started = time.monotonic()
    before = [_latest_id(job.lake, table) for table in job.tables]
    shown = [str(file.path) for file in choice.new[:3]]
    more = f" and {len(choice.new) - len(shown)} more" if len(choice.new) > len(shown) else ""
    doing = f"ingesting {', '.join(shown)}{more} into {job.source.name!r}"
    folder = job.state_dir / "ingest" / run.id
    with ExitStack() as stack:
        files = stack.enter_context(without_long_lines(choice.new, folder, run.max_line_bytes))
        if copies is not None:
            files = stack.enter_context(copies.copied(files, folder))
        groups = group_files(files, job.source, run.mapping)
        job.run_files(groups, run.run, doing, sinks)
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


def _settle(job: FileJob, copies: InputCopies | None) -> tuple[str | None, tuple[str, ...]]:
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
    choice = FileChoice(_as_they_were(run, copies), ())
    _run_files(job, run, choice, (not events, not rejected), copies=copies)
    return run.id, ()


def _as_they_were(run: LedgerRun, copies: InputCopies | None) -> tuple[InputFile, ...]:
    """Return the files of an interrupted run; ConfigurationError if one is gone or has changed."""
    files: list[InputFile] = []
    for recorded in run.files:
        path = Path(recorded.path)
        if not path.exists() or (file := _inspected(path, copies)).sha256 != recorded.sha256:
            raise ConfigurationError(
                f"run {run.id} was interrupted between its two commits, and its file {path} has "
                "been removed or changed since; restore it, so that the run can be finished"
            )
        files.append(file)
    return tuple(files)


def _commits(lake: Lake, table: str, run: IngestRun, since: int) -> tuple[int, int | None]:
    """Return rows and last snapshot that the run committed to a table after snapshot ``since``."""
    mine = [s for s in snapshots(lake, table, since + 1) if run.made(s.commit_user)]
    rows = sum(snapshot.delta_records for snapshot in mine if snapshot.kind == "APPEND")
    return rows, (mine[-1].id if mine else None)


def _rejected(job: FileJob, run: LedgerRun) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many rows the run rejected by reason, most first, and one of each as an
    example."""
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
