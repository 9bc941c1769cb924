"""Ingestion of files by Flink; ``ingest.file_ingestion`` has the steps of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paimon_features.definitions import EventSource
from paimon_features.ingest.file_ingestion import IngestResult, ingest_by
from paimon_features.ingest.flink.job import ChoosePartitions, IngestJob
from paimon_features.ingest.ingest_progress import OnIngestProgress
from paimon_features.ingest.long_lines import MAX_LINE_BYTES
from paimon_features.lake import Lake


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
    progress: OnIngestProgress | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    choose_partitions: ChoosePartitions | None = None,
) -> IngestResult:
    """Load files into the source's events table, each file once; ``ingest_by`` has the rules.

    Parameters
    ----------
    state_dir
        The project's state folder, for logs.
    cluster
        ``host:port`` of a session cluster that sees the same files; None runs the job here.
    progress
        Called about every second while the job runs.
    choose_partitions
        Called before the job runs; sets the partitions of a table without events.

    Raises
    ------
    ConfigurationError, UnknownNameError, OwnershipError, JobError, RecordLostError
        As ``ingest_by``.
    """
    job = IngestJob(lake, source, state_dir, parallelism, cluster, progress, choose_partitions)
    return ingest_by(job, paths, mapping, again=again, max_line_bytes=max_line_bytes)
