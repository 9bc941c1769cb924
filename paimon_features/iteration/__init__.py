"""Iterations of FLIP-176: loops in a dataflow, with exactly-once results.

The runtime does not depend on an engine. What needs Flink (``IterationJob`` and others of
``paimon_features.flink.iteration``) can be imported from here, too; pyflink is imported then.
"""

from paimon_features.iteration.body import (
    IterationBody,
    IterationBodyResult,
    for_each_round,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
)
from paimon_features.iteration.config import IterationConfig, OperatorLifeCycle
from paimon_features.iteration.library import (
    forward_inputs_of_last_round,
    terminate_on_max_iter,
    terminate_on_max_iter_or_tol,
)
from paimon_features.iteration.reference.executor import ReferenceExecutor
from paimon_features.iteration.stream_lists import DataStreamList, ReplayableDataStreamList
from paimon_features.iteration.streams import (
    ConnectedIterationStreams,
    IterationStream,
    KeyedIterationStream,
)
from paimon_features.iteration.user_functions import IterationListener

__all__ = [
    "ConnectedIterationStreams",
    "DataStreamList",
    "IterationBody",
    "IterationBodyResult",
    "IterationConfig",
    "IterationListener",
    "IterationStream",
    "KeyedIterationStream",
    "OperatorLifeCycle",
    "ReferenceExecutor",
    "ReplayableDataStreamList",
    "for_each_round",
    "forward_inputs_of_last_round",
    "iterate_bounded_streams_until_termination",
    "iterate_unbounded_streams",
    "terminate_on_max_iter",
    "terminate_on_max_iter_or_tol",
]
