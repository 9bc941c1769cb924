"""Running the ingest job: files once, a Kafka topic for as long as one likes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.flink.environment import (
    await_job,
    flink_errors,
    open_environment,
    register_lake,
)
from jobs.flink.gateway import start_gateway
from jobs.logic.ingest import IngestStatements, Run, file_statements, kafka_statements
from jobs.logic.inputs import InputFile, KafkaTopic, find_files, group_files, look_at
from jobs.logic.ledger import Choice, Ledger, LedgerRun
from jobs.logic.rest import FlinkRest
from paimon_features.definitions import EventSource
from paimon_features.errors import ConfigurationError, JobError, UnknownNameError
from paimon_features.tables import Lake, latest_snapshot, lease, read_arrow
from paimon_features.tables.lease import FlinkJobHolder, Lease, ProcessHolder
from paimon_features.tables.reader import snapshots
from paimon_features.tables.snapshots import snapshot_ids

if TYPE_CHECKING:
    from pyflink.table import StatementSet, TableEnvironment

OPTIONS: Mapping[str, str] = {
    # both inserts share all steps above them (see jobs.logic.ingest)
    "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",
}


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a run brought. ``rejected`` counts rows by reason, ``examples`` shows one of each."""

    run_id: str | None
    files: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    ignored_columns: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    events_snapshot: int | None = None
    finished_run: str | None = None
    """An earlier run that had been interrupted and was finished first."""


def ingest_files(
    lake: Lake,
    source: EventSource,
    paths: Iterable[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    parallelism: int = 2,
    cluster: str | None = None,
    state_dir: Path | None = None,
    tick: Callable[[float], None] | None = None,
) -> IngestResult:
    """Bring files into the source's events table, each file once.

    The rows of all files enter in one commit; rows that cannot be events are kept in the
    rejected table, with the reason. A run that was interrupted is finished first. Files that
    were ingested before are skipped, unless ``again``.

    Parameters
    ----------
    mapping
        Column of the source -> name in the files, where they differ.
    cluster
        ``host:port`` of a session cluster that sees the same files; None runs the job here.
    tick
        Called with the seconds since the job's start, several times a second.

    Raises
    ------
    ConfigurationError
        For a path, header or column that is not as it has to be, or a file that has changed.
    UnknownNameError
        If the source was not applied.
    OwnershipError
        If another job or process writes one of the two tables.
    JobError
        If the job fails; then nothing was committed, or the next run finishes it.
    """
    job = _Job(lake, source, parallelism, cluster, state_dir, tick)
    job.check_tables()
    ledger = Ledger(lake, source)
    looked = [look_at(path) for path in find_files(paths)]
    choice = ledger.choose(looked, again)
    if ledger.open_run() is None and not choice.new:
        return IngestResult(None, (), _reasons(choice))
    with ExitStack() as stack:
        job.hold(stack)
        finished = _settle(job, ledger)
        job.hold(stack)  # on a cluster, the leases went with the run that was settled
        choice = ledger.choose(looked, again)
        if not choice.new:
            return IngestResult(None, (), _reasons(choice), finished_run=finished)
        # before the run is written down: a wrong column leaves no trace
        group_files(choice.new, source, mapping or {})
        run = ledger.begin(choice.new, dict(mapping or {}), time.time_ns() // 1_000_000)
        return job.run_files(ledger, run, choice.new, _reasons(choice), (True, True), finished)


def ingest_kafka(
    lake: Lake,
    source: EventSource,
    topic: KafkaTopic,
    *,
    state_dir: Path,
    checkpoint_interval_ms: int = 1_000,
    parallelism: int = 2,
    cluster: str | None = None,
    restart: bool = False,
    tick: Callable[[float], None] | None = None,
) -> str:
    """Bring a Kafka topic into the source's events table, until it is stopped.

    Exactly once: the offsets are part of the checkpoints with which the rows are committed. A
    later run goes on from the last checkpoint. Returns the job's id; without ``cluster`` it
    returns when the job has ended, with it the job runs on, detached.

    The SQL and the wiring of this job are tested up to Flink's plan; it has not been run
    against a broker by this project.

    Raises
    ------
    JobError
        If the job fails, or there is no checkpoint to go on from though earlier runs have
        committed; ``restart`` then goes on from the group's offsets (some rows may come twice).
    UnknownNameError, OwnershipError
        As ``ingest_files``.
    """
    job = _Job(lake, source, parallelism, cluster, state_dir, tick)
    job.check_tables()
    run = Run(f"kafka-{source.name}", None)
    folder = state_dir / "checkpoints" / f"ingest-{source.name}"
    with ExitStack() as stack:
        leases = job.hold(stack)
        conf = {
            "execution.checkpointing.interval": f"{checkpoint_interval_ms} ms",
            "execution.checkpointing.dir": folder.as_uri(),
        }
        checkpoint = None if restart else recovery_path(lake, source, run, folder)
        if checkpoint is not None:
            conf["execution.state-recovery.path"] = checkpoint.as_uri()
        env = job.environment("streaming", conf)
        inserts = _prepare(env, kafka_statements(source, topic, run), (True, True))
        return job.execute(inserts, leases, f"ingesting topic {topic.topic!r}", detached=True)


def explain(
    env: TableEnvironment, statements: IngestStatements, sinks: tuple[bool, bool] = (True, True)
) -> str:
    """Flink's plan of the job, as text."""
    with flink_errors("planning the ingest job"):
        return str(_prepare(env, statements, sinks).explain())


def recovery_path(lake: Lake, source: EventSource, run: Run, folder: Path) -> Path | None:
    """The checkpoint from which a streaming run goes on, None for a first run.

    Raises
    ------
    JobError
        If the tables hold commits of earlier runs and no checkpoint is as new as they are.
    """
    found = [path.parent for path in folder.glob("*/chk-*/_metadata")]
    newest = max(found, key=lambda p: (p / "_metadata").stat().st_mtime_ns, default=None)
    number = -1 if newest is None else int(newest.name.removeprefix("chk-"))
    for table in (source.table, source.rejected_table):
        ids = snapshot_ids(lake, table)
        mine = [
            snapshot.commit_identifier
            for snapshot in snapshots(lake, table, ids[0] if ids else None)
            if snapshot.commit_user.startswith(run.commit_user_prefix)
        ]
        if mine and mine[-1] > number:
            raise JobError(
                f"table {table!r} holds checkpoint {mine[-1]} of this stream, and the newest "
                f"checkpoint in {folder} is {'missing' if number < 0 else number}: rows since "
                "then would come twice. Bring the checkpoint back, or accept that by --restart"
            )
    return newest


class _Job:
    """One source's job: its tables, leases, environment and execution."""

    def __init__(
        self,
        lake: Lake,
        source: EventSource,
        parallelism: int,
        cluster: str | None,
        state_dir: Path | None,
        tick: Callable[[float], None] | None,
    ) -> None:
        self.lake = lake
        self.source = source
        self.parallelism = parallelism
        self.cluster = cluster
        self.state_dir = state_dir
        self.tick = tick

    @property
    def tables(self) -> tuple[str, str]:
        return self.source.table, self.source.rejected_table

    def check_tables(self) -> None:
        for table in self.tables:
            if not self.lake.exists(table):
                raise UnknownNameError(
                    f"source {self.source.name!r} has no table {table!r} yet; "
                    "'paimon-features apply' creates it"
                )

    def hold(self, stack: ExitStack) -> list[Lease]:
        """Own both tables until the end of ``stack``; a repeat goes on owning them.

        Here the JVM holds them, not this process: it is the one that commits, and it outlives
        this process by a moment when that is killed.
        """
        purpose = f"ingest into {self.source.name!r}"
        holder = None
        if self.cluster is None:
            holder = ProcessHolder.of(start_gateway(self.state_dir).pid)
        return [
            stack.enter_context(lease.acquire(self.lake, table, holder, purpose))
            for table in self.tables
        ]

    def environment(self, mode: str, conf: Mapping[str, str]) -> TableEnvironment:
        env = open_environment(
            "batch" if mode == "batch" else "streaming",
            self.parallelism,
            {**OPTIONS, "pipeline.name": f"ingest {self.source.name}", **conf},
            self.cluster,
            state_dir=self.state_dir,
        )
        register_lake(env, self.lake)
        return env

    def execute(
        self, inserts: StatementSet, leases: Sequence[Lease], doing: str, detached: bool = False
    ) -> str:
        """Run the job; on a cluster its leases belong to it, so that they outlive this process."""
        with flink_errors(doing):
            result = inserts.execute()
            client = result.get_job_client()
            assert client is not None
            job_id = str(client.get_job_id())
        if self.cluster is not None:
            holder = FlinkJobHolder(FlinkRest(self.cluster).url, job_id)
            for held in leases:
                held.transfer(holder)
            if detached:
                return job_id
        await_job(result, doing, self.tick)
        return job_id

    def run_files(
        self,
        ledger: Ledger,
        run: LedgerRun,
        files: Sequence[InputFile],
        skipped: tuple[tuple[str, str], ...],
        sinks: tuple[bool, bool],
        finished: str | None,
    ) -> IngestResult:
        """Run the job of a run that is written down, then close the run."""
        started = time.monotonic()
        groups = group_files(files, self.source, run.mapping)
        env = self.environment("batch", {})
        with ExitStack() as stack:
            leases = self.hold(stack)
            before = [_latest_id(self.lake, table) for table in self.tables]
            inserts = _prepare(env, file_statements(self.source, groups, run.run), sinks)
            self.execute(inserts, leases, f"ingesting into {self.source.name!r}")
            if self.cluster is not None:
                for table in self.tables:
                    lease.release(self.lake, table)  # the job that held it has ended
            made = [
                self._commits(table, run, since)
                for table, since in zip(self.tables, before, strict=True)
            ]
            ledger.finish(run, made[0][1], made[1][1])
        rejected, examples = self._rejected(run.id) if made[1][0] else ({}, {})
        return IngestResult(
            run.id,
            tuple(str(file.path) for file in files),
            skipped,
            made[0][0],
            rejected,
            examples,
            tuple(dict.fromkeys(name for group in groups for name in group.ignored)),
            time.monotonic() - started,
            made[0][1],
            finished,
        )

    def _commits(self, table: str, run: LedgerRun, since: int) -> tuple[int, int | None]:
        """Rows and last snapshot that the run committed to a table after snapshot ``since``."""
        mine = [
            snapshot
            for snapshot in snapshots(self.lake, table, since + 1)
            if snapshot.commit_user.startswith(run.run.commit_user_prefix)
        ]
        rows = sum(snapshot.delta_records for snapshot in mine if snapshot.kind == "APPEND")
        return rows, (mine[-1].id if mine else None)

    def _rejected(self, run_id: str) -> tuple[dict[str, int], dict[str, str]]:
        rows = read_arrow(
            self.lake,
            self.source.rejected_table,
            columns=["reason", "detail", "origin"],
            where={"ingest_id": [run_id]},
        ).to_pylist()
        counts = Counter(row["reason"] for row in rows)
        examples = {row["reason"]: f"{row['detail']} ({row['origin']})" for row in reversed(rows)}
        return dict(counts.most_common()), examples


def _settle(job: _Job, ledger: Ledger) -> str | None:
    """Finish or forget the run that was left open; returns the id of one that was finished."""
    run = ledger.open_run()
    if run is None:
        return None
    events, rejected = ledger.committed(run)
    if not events and not rejected:
        ledger.forget()
        return None
    if events and rejected:
        ledger.finish(run, None, None)
        return run.id
    # one commit of two was made, or all rows were of one kind: bring what is missing, if any
    files = []
    for known in run.files:
        path = Path(known.path)
        if not path.is_file() or (file := look_at(path)).sha256 != known.sha256:
            raise ConfigurationError(
                f"run {run.id} was interrupted between its two commits, and its file {path} is "
                "gone or has changed since; bring it back, so that the run can be finished"
            )
        files.append(file)
    job.run_files(ledger, run, files, (), (not events, not rejected), None)
    return run.id


def _prepare(
    env: TableEnvironment, statements: IngestStatements, sinks: tuple[bool, bool]
) -> StatementSet:
    for table in statements.tables:
        env.execute_sql(table)
    for name, query in statements.views:
        # as a Table object and not by CREATE VIEW, whose text each insert would expand anew
        env.create_temporary_view(name, env.sql_query(query))
    inserts = env.create_statement_set()
    for wanted, insert in zip(sinks, (statements.events, statements.rejected), strict=True):
        if wanted:
            inserts.add_insert_sql(insert)
    return inserts


def _reasons(choice: Choice) -> tuple[tuple[str, str], ...]:
    return tuple((str(file.path), why) for file, why in choice.skipped)


def _latest_id(lake: Lake, table: str) -> int:
    newest = latest_snapshot(lake, table)
    return 0 if newest is None else newest.id
