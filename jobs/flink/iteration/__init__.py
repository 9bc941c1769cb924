"""Iterations on Flink."""

from jobs.flink.iteration.job import FlinkJobBuilder, IterationJob
from jobs.flink.iteration.outputs import Files
from jobs.flink.iteration.running import RunningIteration
from jobs.flink.iteration.settings import IterationSettings, open_stream_environment
from jobs.flink.iteration.tables import PaimonTable

__all__ = [
    "Files",
    "FlinkJobBuilder",
    "IterationJob",
    "IterationSettings",
    "PaimonTable",
    "RunningIteration",
    "open_stream_environment",
]
