"""The Flink engine as ``paimon_features.project.engines`` finds it."""

from __future__ import annotations

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.process.callbacks import OnMessage
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.offline.flink.engine import FlinkHistoryEngine
from paimon_features.tiles.flink.submission import backfill

__all__ = ["backfill", "history_engine", "ingest_files"]


def history_engine(
    config: ProjectConfig, cluster: str | None, on_message: OnMessage | None
) -> FlinkHistoryEngine:
    """Return Flink's engine of historical features, see ``FlinkHistoryEngine.of``."""
    return FlinkHistoryEngine.of(config, cluster, on_message)
