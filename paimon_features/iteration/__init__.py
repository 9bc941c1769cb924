"""Iterations of FLIP-176: loops in a dataflow, with exactly-once results.

The runtime does not depend on an engine. ``IterationJob`` runs a program on Flink: it can be
imported from here, too, and is loaded from ``paimon_features.iteration.flink`` on first access.
"""

from __future__ import annotations

import importlib
from typing import Any

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

_ON_FLINK = "paimon_features.iteration.flink"


def __getattr__(name: str) -> Any:
    """Load ``IterationJob``, which needs pyflink, on first access."""
    if name == "IterationJob":
        return getattr(importlib.import_module(_ON_FLINK), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
