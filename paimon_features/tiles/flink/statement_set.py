"""The tile job as a statement set: two INSERT statements in one Flink job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paimon_features.flink.environment import flink_errors, java_causes
from paimon_features.tiles.flink.tiling import PLANNER_OPTIONS, TileStatements

if TYPE_CHECKING:
    from pyflink.table import StatementSet, TableEnvironment


class RunningJob:
    """A submitted job; one on a cluster continues without this object."""

    def __init__(self, client: Any) -> None:
        self.id = str(client.get_job_id())
        self._result = client.get_job_execution_result()

    @property
    def ended(self) -> bool:
        """Whether a local job has ended; it ends with its JVM."""
        from py4j.protocol import Py4JNetworkError

        try:
            return bool(self._result.done())
        except Py4JNetworkError:
            return True

    def failure(self) -> str | None:
        """Wait for the end of a local job; returns the root cause of a failure, None on success."""
        from py4j.protocol import Py4JNetworkError

        try:
            self._result.result()
        except Py4JNetworkError:
            return "the JVM that ran it has ended"
        except Exception as error:  # any exception means that the job failed
            return (java_causes(error) or [str(error)])[-1]
        return None


def execute(env: TableEnvironment, statements: TileStatements) -> RunningJob:
    """Start the job.

    Raises
    ------
    JobError
        If it cannot be planned or submitted.
    """
    with flink_errors("starting the tile job"):
        client = statement_set(env, statements).execute().get_job_client()
        assert client is not None  # an INSERT always has a job
        return RunningJob(client)


def statement_set(env: TableEnvironment, *statements: TileStatements) -> StatementSet:
    """Return the statements of one generation, or of several, as one job."""
    for key, value in PLANNER_OPTIONS.items():
        env.get_config().set(key, value)
    together = env.create_statement_set()
    for statement in statements:
        together.add_insert_sql(statement.tiles)
        together.add_insert_sql(statement.skipped)
    return together
