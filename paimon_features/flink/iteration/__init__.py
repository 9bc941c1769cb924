"""Iterations on Flink."""

from paimon_features.flink.iteration.job import FlinkJobBuilder, IterationJob
from paimon_features.flink.iteration.outputs import Files
from paimon_features.flink.iteration.running import RunningIteration
from paimon_features.flink.iteration.settings import IterationSettings, open_stream_environment
from paimon_features.flink.iteration.table_outputs import PaimonTable

__all__ = [
    "Files",
    "FlinkJobBuilder",
    "IterationJob",
    "IterationSettings",
    "PaimonTable",
    "RunningIteration",
    "open_stream_environment",
]
