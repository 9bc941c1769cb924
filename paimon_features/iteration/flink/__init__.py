"""Iterations on Flink: jobs, settings, outputs."""

from paimon_features.flink.stream_environment import open_stream_environment
from paimon_features.iteration.flink.job import FlinkJobBuilder, IterationJob
from paimon_features.iteration.flink.job_settings import IterationSettings
from paimon_features.iteration.flink.outputs import FileOutput
from paimon_features.iteration.flink.running_job import RunningIteration
from paimon_features.iteration.flink.table_outputs import PaimonTable

__all__ = [
    "FileOutput",
    "FlinkJobBuilder",
    "IterationJob",
    "IterationSettings",
    "PaimonTable",
    "RunningIteration",
    "open_stream_environment",
]
