"""The tile job on Flink: two INSERT statements as one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.flink.environment import flink_errors
from jobs.logic.tiling import TileStatements

if TYPE_CHECKING:
    from pyflink.table import StatementSet, TableEnvironment


def execute(env: TableEnvironment, statements: TileStatements, *, wait: bool = False) -> str:
    """Start the job and return its id; with ``wait`` only once it has ended.

    Raises
    ------
    JobError
        If it does not start, or, with ``wait``, does not end well.
    """
    with flink_errors("running the tile job"):
        result = _statement_set(env, statements).execute()
        client = result.get_job_client()
        assert client is not None  # an INSERT always has a job
        if wait:
            result.wait()
        return str(client.get_job_id())


def explain(env: TableEnvironment, statements: TileStatements) -> str:
    """Flink's plan of the job, as text."""
    with flink_errors("planning the tile job"):
        return str(_statement_set(env, statements).explain())


def _statement_set(env: TableEnvironment, statements: TileStatements) -> StatementSet:
    together = env.create_statement_set()
    together.add_insert_sql(statements.tiles)
    together.add_insert_sql(statements.skipped)
    return together
