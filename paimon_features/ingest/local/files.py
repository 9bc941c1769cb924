"""Ingestion of files by this process; ``ingest.file_ingestion`` has the steps of a run."""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.definitions import EventSource
from paimon_features.ingest.cells.cells import CellBatch
from paimon_features.ingest.cells.judge import Judged, judge
from paimon_features.ingest.file_ingestion import FileJob, IngestResult, ingest_by
from paimon_features.ingest.ingest_progress import REPORT_S, IngestProgress, OnIngestProgress
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.inputs.copies import InputCopiesApart
from paimon_features.ingest.local.duplicates import without_duplicates
from paimon_features.ingest.local.parts import parts_of
from paimon_features.ingest.local.sampling import choose_partitions
from paimon_features.ingest.long_lines import MAX_LINE_BYTES
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, table_options
from paimon_features.lake.ownership import lease
from paimon_features.lake.writing.append_files import AppendFiles
from paimon_features.lake.writing.table_writer import append_files, conform, event_rows

_AHEAD = 2
"""Parts that wait for a thread, by thread."""


def ingest_files(
    lake: Lake,
    source: EventSource,
    paths: Iterable[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    state_dir: Path,
    again: bool = False,
    progress: OnIngestProgress | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    threads: int | None = None,
    settings: InputSettings | None = None,
) -> IngestResult:
    """Load files into the source's events table, each file once, without Java.

    The rows that are accepted, and those that are rejected, are those of
    ``paimon_features.ingest.flink.files.ingest_files``, and either engine finishes what the other
    began. ``threads`` convert rows, one per core by default. ``settings`` say how the files are
    written; other forms of files and tables than those of Flink are converted first.

    Raises
    ------
    ConfigurationError, UnknownNameError, OwnershipError, JobError, RecordLostError
        As ``ingest_by``.
    """
    job = LocalIngestJob(lake, source, state_dir, threads, progress)
    used = settings or InputSettings()
    columns = {**used.columns, **(mapping or {})}
    copies = InputCopiesApart(source, replace(used, columns=columns), job.converted)
    return ingest_by(job, paths, columns, again=again, max_line_bytes=max_line_bytes, copies=copies)


class LocalIngestJob(FileJob):
    """The job of one source, in this process."""

    def __init__(
        self,
        lake: Lake,
        source: EventSource,
        state_dir: Path,
        threads: int | None = None,
        progress: OnIngestProgress | None = None,
    ) -> None:
        super().__init__(lake, source, state_dir)
        self.threads = threads or os.cpu_count() or 1
        self._progress = _RowCount(progress, lambda: lease.check_all(self.leases))

    def converted(self, rows: int) -> None:
        """Count rows that were converted to a copy."""
        self._progress.add(rows, "converting")

    def run_files(
        self,
        groups: Sequence[FileGroup],
        run: IngestRun,
        doing: str,
        sinks: tuple[bool, bool] = (True, True),
    ) -> None:
        user = f"{run.commit_user_prefix}_{uuid.uuid4()}"
        source = self.source
        self._progress.start(_rows_of(groups))
        choose_partitions(self.lake, source, groups, run)
        schema = self.lake.schema(source.table)
        partition_days = table_options.partition_days(self.lake, source.table)
        with (
            AppendFiles(self.lake, source.table, user) as events,
            AppendFiles(self.lake, source.rejected_table, user) as rejected,
        ):
            for judged in self._judged(groups, run, doing):
                if sinks[0] and judged.events.num_rows:
                    time_ms = run.time_ms or 0
                    rows = event_rows(judged.events, source.event_time, time_ms, partition_days)
                    events.write(conform(self.lake, source.table, rows, schema))
                if sinks[1] and judged.rejected is not None:
                    rejected.write(judged.rejected)
            self._progress.phase("committing")
            append_files(self.lake, source.rejected_table, rejected, user)
            append_files(self.lake, source.table, events, user)

    def _judged(self, groups: Sequence[FileGroup], run: IngestRun, doing: str) -> Iterator[Judged]:
        rows = self._converted(groups, run, doing)
        if self.source.event_id is None:
            return rows
        return without_duplicates(self.lake, self.source, run, rows, self.state_dir / "spill")

    def _converted(
        self, groups: Sequence[FileGroup], run: IngestRun, doing: str
    ) -> Iterator[Judged]:
        """Yield the rows of all files in order, converted by several threads."""
        waiting: deque[Future[tuple[int, list[Judged]]]] = deque()
        with ThreadPoolExecutor(self.threads, "ingest") as pool:

            def convert(
                part: Callable[[], list[CellBatch]], group: FileGroup
            ) -> tuple[int, list[Judged]]:
                batches = part()
                rows = sum(batch.rows + len(batch.broken) for batch in batches)
                return rows, [judge(batch, group, self.source, run) for batch in batches]

            def first() -> list[Judged]:
                rows, judged = waiting.popleft().result()
                self._progress.add(rows)
                return judged

            try:
                for part, group in parts_of(groups, doing):
                    waiting.append(pool.submit(convert, part, group))
                    while len(waiting) > _AHEAD * self.threads:
                        yield from first()
                while waiting:
                    yield from first()
            finally:
                for future in waiting:
                    future.cancel()


def _rows_of(groups: Sequence[FileGroup]) -> int | None:
    """Return the rows of all files; None if there is one that does not say."""
    files = [file for group in groups for file in group.files]
    if any(file.format != "parquet" for file in files):
        return None
    return sum(int(pq.read_metadata(file.read_path).num_rows) for file in files)


class _RowCount:
    """Counts rows, and reports about every second."""

    def __init__(self, progress: OnIngestProgress | None, check: Callable[[], None]) -> None:
        self.progress, self.check = progress, check
        self.began = time.monotonic()
        self.last = IngestProgress(0.0, 0, 0.0)
        self.rows = 0
        self.total: int | None = None

    def start(self, total: int | None) -> None:
        self.began, self.rows, self.total = time.monotonic(), 0, total
        self.last = IngestProgress(0.0, 0, 0.0)

    def phase(self, name: str) -> None:
        """Report another phase at once."""
        if self.progress is not None:
            elapsed = time.monotonic() - self.began
            self.progress(
                IngestProgress(elapsed, self.rows, self.rows / max(elapsed, 1e-9), None, name)
            )

    def add(self, rows: int, phase: str = "reading") -> None:
        """Count rows; raises LeaseLostError once the tables were taken over."""
        self.rows += rows
        elapsed = time.monotonic() - self.began
        if elapsed - self.last.elapsed_s < REPORT_S:
            return
        self.check()
        rate = (self.rows - self.last.rows_read) / (elapsed - self.last.elapsed_s)
        self.last = IngestProgress(elapsed, self.rows, rate, None, phase, self.total)
        if self.progress is not None:
            self.progress(self.last)
