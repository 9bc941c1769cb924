"""An ingest job on Flink: its leases, its environment, its execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import EventSource
from paimon_features.flink.cluster import LocalCluster
from paimon_features.flink.environment import (
    FIXED_JOB_ID,
    PIPELINED_BATCH,
    await_job,
    flink_errors,
    local_rest,
    new_job_id,
    open_environment,
    register_lake,
)
from paimon_features.flink.gateway import start_gateway
from paimon_features.flink.stream_jobs import StreamJobRecord, record_end, recorded
from paimon_features.ingest.file_ingestion import FileJob
from paimon_features.ingest.flink.ingest_sql import IngestStatements, file_statements
from paimon_features.ingest.ingest_progress import REPORT_S, IngestProgress, OnIngestProgress
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.ledger import ClusterJob
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, table_options
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import FlinkJobHolder, ProcessHolder
from paimon_features.lake.storage.file_path import FilePath

if TYPE_CHECKING:
    from pyflink.table import StatementSet, TableEnvironment

OPTIONS: Mapping[str, str] = {
    # both inserts share all steps before them (see paimon_features.ingest.flink.ingest_sql)
    "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",
}

PIPELINED_GROUPS = 4
"""A job over at most this number of groups of files runs all its tasks at the same time."""

ChoosePartitions = Callable[[Lake, EventSource, Sequence[FileGroup], IngestRun], None]
"""Chooses the partitions of an events table by files, before they are ingested."""


class IngestJob(FileJob):
    """The job of one source.

    ``cluster`` is the ``host:port`` of a session cluster; None runs the job in the JVM of this
    process. ``state_dir`` is the project's state folder, ``progress`` is called about every second.
    """

    def __init__(
        self,
        lake: Lake,
        source: EventSource,
        state_dir: Path,
        parallelism: int,
        cluster: str | None,
        progress: OnIngestProgress | None,
        choose_partitions: ChoosePartitions | None = None,
    ) -> None:
        super().__init__(lake, source, state_dir)
        self.parallelism = parallelism
        self.cluster = cluster
        self.progress = progress
        self.choose_partitions = choose_partitions

    def check(self) -> None:
        """Check what can be checked before a JVM starts.

        Raises
        ------
        ConfigurationError, UnknownNameError
            As of any job, and for a cluster that is not ``host:port``.
        JobError
            If the cluster does not answer.
        """
        super().check()
        if self.cluster is not None:
            FlinkRest(self.cluster).overview()

    def owner(self, short_lived: bool) -> ProcessHolder:
        """Return the JVM: it commits or submits the job, and outlives this process for a moment
        when that is killed."""
        gateway = start_gateway(self.state_dir, short_lived=short_lived or self.cluster is not None)
        return ProcessHolder.of(gateway.pid)

    def _owning(self, tick: Callable[[float], None]) -> Callable[[float], None]:
        """Return ``tick``, which also raises once the tables were taken over: the job is cancelled
        then."""

        def checked(elapsed_s: float) -> None:
            lease.check_all(self.leases)
            tick(elapsed_s)

        return checked

    def environment(
        self, mode: Literal["streaming", "batch"], conf: Mapping[str, str]
    ) -> TableEnvironment:
        """Return an environment with the lake's catalog."""
        named = {**OPTIONS, "pipeline.name": f"ingest {self.source.name}", **conf}
        env = open_environment(
            mode, self.parallelism, named, self.cluster, state_dir=self.state_dir
        )
        register_lake(env, self.lake)
        return env

    def run(
        self,
        mode: Literal["streaming", "batch"],
        statements: IngestStatements,
        doing: str,
        sinks: tuple[bool, bool] = (True, True),
        conf: Mapping[str, str] | None = None,
        checkpoints: FilePath | None = None,
        until: Callable[[], bool] | None = None,
        job_id: str | None = None,
        stream: str | None = None,
    ) -> str:
        """Execute the inserts chosen by ``sinks`` and wait for the end; returns the job's id.

        Error messages contain ``doing``. A stream on a cluster is not waited for unless it has an
        end: once ``until`` returns True, it is stopped with a savepoint in ``checkpoints``. A job
        on a cluster owns the tables itself. The job of a ``stream`` is recorded for ``status``.

        Raises
        ------
        JobError
            If the job cannot be planned or submitted, or fails.
        """
        job_id = job_id or new_job_id()
        address, reachable = local_rest() if self.cluster is None else (self.cluster, {})
        rest = FlinkRest(address)
        with ExitStack() as stack:
            if stream is not None:
                stack.enter_context(recorded(self.state_dir, self._record(stream, job_id, rest)))
            ended = self._run(
                mode, statements, doing, sinks, {**reachable, **(conf or {})}, checkpoints, until,
                job_id, rest,
            )  # fmt: skip
        if stream is not None and ended:
            record_end(self.state_dir, job_id, "FINISHED")
        return job_id

    def _record(self, stream: str, job_id: str, rest: FlinkRest) -> StreamJobRecord:
        local = self.cluster is None
        process = (
            self._holder if local else LocalCluster(self.state_dir).process_of(str(self.cluster))
        )
        return StreamJobRecord(
            "ingest", stream, job_id, rest.url, local, process, now_ms(), self.tables, self.tables
        )

    def _run(
        self,
        mode: Literal["streaming", "batch"],
        statements: IngestStatements,
        doing: str,
        sinks: tuple[bool, bool],
        conf: Mapping[str, str],
        checkpoints: FilePath | None,
        until: Callable[[], bool] | None,
        job_id: str,
        rest: FlinkRest,
    ) -> bool:
        """Submit the job and wait for its end; False if it continues detached."""
        env = self.environment(mode, {**conf, FIXED_JOB_ID: job_id})
        with flink_errors(f"planning {doing}"):
            inserts = prepare(env, statements, sinks)
        if self.cluster is None:
            with flink_errors(doing):
                result = inserts.execute()
        else:
            process = LocalCluster(self.state_dir).process_of(self.cluster)
            holder = FlinkJobHolder(rest.url, job_id, process)
            kept = None if checkpoints is None else str(checkpoints)
            self.ledger.send(ClusterJob(rest.url, job_id, kept))
            with flink_errors(doing):
                result = inserts.execute()
            self.leases = [held.transfer(holder) for held in self.leases]
            if mode == "streaming" and until is None:
                return False
        tick = _watch(rest, job_id, self.progress)
        if until is not None and checkpoints is not None:
            tick = _stopping(tick, rest, job_id, until, checkpoints / job_id)
        await_job(result, doing, self._owning(tick))
        if self.cluster is not None:
            # the job, which owned the tables, has ended; what it did is recorded under their leases
            self.leases = [
                self._stack.enter_context(held.transfer(self._holder)) for held in self.leases
            ]
        return True

    def run_files(
        self,
        groups: Sequence[FileGroup],
        run: IngestRun,
        doing: str,
        sinks: tuple[bool, bool] = (True, True),
    ) -> None:
        if self.choose_partitions is not None:
            self.choose_partitions(self.lake, self.source, groups, run)
        partition_days = table_options.partition_days(self.lake, self.source.table)
        statements = file_statements(self.source, groups, run, partition_days)
        # duplicates are found by a sort, and tasks of many groups need too many network buffers
        simple = self.source.event_id is None and len(groups) <= PIPELINED_GROUPS
        conf = PIPELINED_BATCH if self.cluster is None and simple else None
        self.run("batch", statements, doing, sinks, conf)


def prepare(
    env: TableEnvironment, statements: IngestStatements, sinks: tuple[bool, bool] = (True, True)
) -> StatementSet:
    """Return the inserts into the events and the rejected table, as far as chosen by ``sinks``."""
    for table in statements.tables:
        env.execute_sql(table)
    for name, query in statements.views:
        # as a Table object and not by CREATE VIEW, whose text each insert would expand again
        env.create_temporary_view(name, env.sql_query(query))
    inserts = env.create_statement_set()
    for chosen, insert in zip(sinks, (statements.events, statements.rejected), strict=True):
        if chosen:
            inserts.add_insert_sql(insert)
    return inserts


def explain(env: TableEnvironment, statements: IngestStatements) -> str:
    """Return Flink's plan of the job, as text."""
    with flink_errors("planning the ingest job"):
        return str(prepare(env, statements).explain())


def _stopping(
    tick: Callable[[float], None],
    rest: FlinkRest,
    job_id: str,
    until: Callable[[], bool],
    folder: FilePath,
) -> Callable[[float], None]:
    """Return ``tick``, which also stops the job with a savepoint in ``folder`` once ``until`` is
    True."""

    def watch(elapsed_s: float) -> None:
        tick(elapsed_s)
        if until():
            # a local cluster ends with its job and may not answer any more; if the job continues,
            # the next tick retries
            with suppress(JobError):
                rest.stop_with_savepoint(job_id, str(folder))

    return watch


def _watch(
    rest: FlinkRest, job_id: str, progress: OnIngestProgress | None
) -> Callable[[float], None]:
    last = IngestProgress(0.0, 0, 0.0)

    def tick(elapsed_s: float) -> None:
        nonlocal last
        if progress is None or elapsed_s - last.elapsed_s < REPORT_S:
            return
        rows, lag = last.rows_read, last.lag
        with suppress(JobError):  # it may just be starting, or ending
            rows, lag = rest.source_records(job_id), rest.source_lag(job_id)
        rate = (rows - last.rows_read) / (elapsed_s - last.elapsed_s)
        last = IngestProgress(elapsed_s, rows, rate, lag)
        progress(last)

    return tick
