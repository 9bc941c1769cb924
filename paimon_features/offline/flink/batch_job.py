"""The point-in-time join on Flink: the statements of one view as one batch job."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paimon_features.flink.environment import (
    await_client,
    await_job,
    flink_errors,
    open_environment,
    register_lake,
)
from paimon_features.flink.stream_environment import open_stream_environment
from paimon_features.lake import Lake

if TYPE_CHECKING:
    from paimon_features.offline.flink.join_parts import PartJoin

_OPTIONS = {
    # a retry after an attempt whose commit succeeded would write rows twice
    "restart-strategy.type": "none",
}


def run_parts(
    join: PartJoin, doing: str, *, parallelism: int, state_dir: Path, tick: Callable[[float], None]
) -> None:
    """Join all parts by one job in the JVM of this process, and wait for its end, as ``run`` does.

    Its subtasks run Python in threads of the JVM, see ``can_run_parts``.

    Raises
    ------
    JobError
        If the job cannot be submitted, or fails.
    """
    from pyflink.common import Configuration, Types
    from pyflink.java_gateway import get_gateway

    from paimon_features.offline.flink.join_parts import JoinParts

    env = open_stream_environment(None, state_dir=state_dir, slots=parallelism, workers=True)
    configuration = Configuration()
    options = {
        **_OPTIONS,
        "pipeline.name": doing,
        "python.execution-mode": "thread",
        # of the sink: by default a task for each core, for which there may be no slots
        "parallelism.default": str(parallelism),
    }
    for name, value in options.items():
        configuration.set_string(name, value)
    env.configure(configuration)
    with flink_errors(doing):
        parts = env.from_collection(list(range(len(join.features))), type_info=Types.INT())
        joined = parts.rebalance().map(JoinParts(join), Types.LONG()).name("join a part")
        joined.set_parallelism(parallelism)
        java: Any = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2
        joined._j_data_stream.sinkTo(java.DiscardingSink())
        client = env.execute_async(doing)
    await_client(client, doing, tick)


def can_run_parts() -> bool:
    """Return True if Python can run in threads of Flink's JVM on this host."""
    return importlib.util.find_spec("pemja") is not None


def run(
    lake: Lake,
    statements: Sequence[str],
    doing: str,
    *,
    parallelism: int,
    cluster: str | None,
    state_dir: Path,
    tick: Callable[[float], None],
) -> None:
    """Run the statements as one job and wait for its end; Ctrl-C cancels it.

    ``tick`` gets the elapsed seconds several times a second; an error in it cancels the job too.

    Raises
    ------
    JobError
        If the job cannot be planned or submitted, or fails.
    """
    conf = {**_OPTIONS, "pipeline.name": doing}
    env = open_environment("batch", parallelism, conf, cluster, state_dir=state_dir)
    register_lake(env, lake)
    with flink_errors(doing):
        together = env.create_statement_set()
        for statement in statements:
            together.add_insert_sql(statement)
        result = together.execute()
    await_job(result, doing, tick)
