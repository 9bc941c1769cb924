"""The Flink engine as ``paimon_features.engines`` finds it."""

from __future__ import annotations

from paimon_features.callbacks import OnMessage
from paimon_features.config import ProjectConfig
from paimon_features.flink.history.engine import FlinkHistoryEngine
from paimon_features.flink.ingest.files import ingest_files
from paimon_features.flink.tiles.submission import backfill

__all__ = ["backfill", "history_engine", "ingest_files"]


def history_engine(
    config: ProjectConfig, cluster: str | None, on_message: OnMessage | None
) -> FlinkHistoryEngine:
    """Historical features by Flink batch jobs, see ``FlinkHistoryEngine.of``."""
    return FlinkHistoryEngine.of(config, cluster, on_message)
