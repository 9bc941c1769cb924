"""The local engine as ``paimon_features.project.engines`` finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import RequestError
from paimon_features.core.process.callbacks import OnMessage
from paimon_features.definitions import EventSource
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.lake import Lake
from paimon_features.tiles.jobs.backfill import TileJobResult
from paimon_features.tiles.jobs.target import TileTarget

__all__ = ["backfill", "history_engine", "ingest_files"]


def backfill(target: TileTarget, **options: object) -> TileJobResult:
    """Compute tiles by DuckDB in this process, see ``backfill_job.backfill``."""
    # imported here: historical features do not need DuckDB
    from paimon_features.tiles.local import submission as backfill_job

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
    """Load files into the events table by Arrow in this process, see
    ``ingest_job.ingest_files``."""
    from paimon_features.ingest.local import files as ingest_job

    return ingest_job.ingest_files(lake, source, paths, mapping, state_dir=state_dir, **options)  # type: ignore[arg-type]


def history_engine(
    config: ProjectConfig, cluster: str | None, on_message: OnMessage | None
) -> None:
    """Return None, the join in this process; raise RequestError if a cluster is given."""
    if cluster is not None:
        raise RequestError(
            f"cluster={cluster!r} requires engine='flink'; the local engine is this process"
        )
