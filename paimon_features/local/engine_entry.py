"""The local engine as ``paimon_features.engines`` finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paimon_features.callbacks import OnMessage
from paimon_features.config import ProjectConfig
from paimon_features.definitions import EventSource
from paimon_features.errors import RequestError
from paimon_features.ingestion.files import IngestResult
from paimon_features.job_control.backfill import TileJobResult
from paimon_features.job_control.target import TileTarget
from paimon_features.tables import Lake

__all__ = ["backfill", "history_engine", "ingest_files"]


def backfill(target: TileTarget, **options: object) -> TileJobResult:
    """Tiles by DuckDB in this process, see ``backfill_job.backfill``."""
    # imported here: historical features do not need DuckDB
    from paimon_features.local import backfill_job

    return backfill_job.backfill(target, **options)  # type: ignore[arg-type]


def ingest_files(
    lake: Lake,
    source: EventSource,
    paths: Iterable[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    state_dir: Path,
    **options: object,
) -> IngestResult:
    """Files into the events table by Arrow in this process, see ``ingest_job.ingest_files``."""
    from paimon_features.local import ingest_job

    return ingest_job.ingest_files(lake, source, paths, mapping, state_dir=state_dir, **options)  # type: ignore[arg-type]


def history_engine(
    config: ProjectConfig, cluster: str | None, on_message: OnMessage | None
) -> None:
    """The join in this process; it runs on no cluster."""
    if cluster is not None:
        raise RequestError(
            f"cluster={cluster!r} requires engine='flink'; the local engine is this process"
        )
