"""Iterations on Flink: jobs, settings, outputs."""

from paimon_features.flink.iteration.job import FlinkJobBuilder, IterationJob
from paimon_features.flink.iteration.job_settings import IterationSettings
from paimon_features.flink.iteration.outputs import FileOutput
from paimon_features.flink.iteration.running_job import RunningIteration
from paimon_features.flink.iteration.table_outputs import PaimonTable
from paimon_features.flink.stream_environment import open_stream_environment

__all__ = [
    "FileOutput",
    "FlinkJobBuilder",
    "IterationJob",
    "IterationSettings",
    "PaimonTable",
    "RunningIteration",
    "open_stream_environment",
]
