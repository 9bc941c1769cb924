"""The point-in-time join on Flink: the statements of one view as one batch job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paimon_features.flink.environment import (
    await_job,
    flink_errors,
    open_environment,
    register_lake,
)
from paimon_features.flink.gateway import start_gateway
from paimon_features.tables import Lake

_OPTIONS = {
    # a retry after an attempt whose commit succeeded would write rows twice
    "restart-strategy.type": "none",
}


def start(state_dir: Path, short_lived: bool) -> None:
    """Start the JVM before anything else, so that a missing Java is an error at once.

    Raises
    ------
    SetupError, MissingExtraError, JobError
        If it cannot be started; the message says what to install.
    """
    start_gateway(state_dir, short_lived=short_lived)


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
