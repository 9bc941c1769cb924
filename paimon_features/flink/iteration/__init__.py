"""Iterations on Flink: jobs, settings, outputs."""

from paimon_features.flink.iteration.job import FlinkJobBuilder, IterationJob
from paimon_features.flink.iteration.job_settings import IterationSettings, open_stream_environment
from paimon_features.flink.iteration.outputs import FileOutput
from paimon_features.flink.iteration.running_job import RunningIteration
from paimon_features.flink.iteration.table_outputs import PaimonTable

__all__ = [
    "FileOutput",
    "FlinkJobBuilder",
    "IterationJob",
    "IterationSettings",
    "PaimonTable",
    "RunningIteration",
    "open_stream_environment",
]
