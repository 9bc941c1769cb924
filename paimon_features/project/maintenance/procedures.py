"""Paimon's procedures, called as short batch jobs of this process's JVM."""

from __future__ import annotations

from pathlib import Path

from paimon_features.flink.environment import flink_errors, open_environment, register_lake
from paimon_features.lake import Lake
from paimon_features.project.maintenance.maintenance_sql import OPTIONS


class Procedures:
    """Calls procedures on the tables of a lake, one at a time."""

    def __init__(self, lake: Lake, parallelism: int, state_dir: Path) -> None:
        self._env = open_environment("batch", parallelism, OPTIONS, state_dir=state_dir)
        register_lake(self._env, lake)

    def call(self, sql: str, doing: str) -> None:
        """Call a procedure and wait for its end.

        Raises
        ------
        JobError
            If it fails; the message contains ``doing``.
        """
        with flink_errors(doing), self._env.execute_sql(sql).collect() as rows:
            for _ in rows:
                pass
