"""Ingestion of a stream, a Kafka topic or a change log, resumed from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.errors import OwnershipError, UnknownNameError
from paimon_features.core.process.flink_rest import ENDED, FlinkRest
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import EventSource
from paimon_features.flink.checkpoints import Checkpoint
from paimon_features.flink.environment import new_job_id
from paimon_features.flink.stream_jobs import record_end
from paimon_features.ingest.flink.change_log_check import check_complete, check_position
from paimon_features.ingest.flink.change_log_sql import ChangeLog, find_change_columns, open_table
from paimon_features.ingest.flink.ingest_sql import (
    IngestStatements,
    change_log_statements,
    kafka_statements,
)
from paimon_features.ingest.flink.job import IngestJob
from paimon_features.ingest.flink.kafka_check import check_topic
from paimon_features.ingest.flink.kafka_security import (
    client_properties,
    remove_secrets,
    secret_folder,
)
from paimon_features.ingest.flink.kafka_sql import KafkaTopic
from paimon_features.ingest.flink.resume import begin, resume_point
from paimon_features.ingest.ingest_progress import OnIngestProgress
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.ingest.release import release_due
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.metadata.consumers import consumers, register_consumer
from paimon_features.lake.metadata.snapshots import earliest_snapshot_id
from paimon_features.lake.storage.file_path import CHECKPOINTS, FilePath


def ingest_kafka(
    lake: Lake,
    source: EventSource,
    topic: KafkaTopic,
    *,
    state_dir: Path,
    job_state: FilePath | None = None,
    checkpoint_interval_ms: int = 1_000,
    parallelism: int = 2,
    cluster: str | None = None,
    restart: bool = False,
    progress: OnIngestProgress | None = None,
    settings: KafkaSettings | None = None,
    accept_loss: bool = False,
) -> str:
    """Load a Kafka topic into the source's events table, until it is stopped.

    Exactly once: the offsets are part of the checkpoints with which the rows are committed. A
    later run resumes from the last checkpoint. Checkpoints are in ``job_state``, by default the
    state folder. Returns the job's id; without ``cluster`` after
    the end of the job, with it the job continues detached. With ``settings``, the client of Kafka
    has their security; secrets stand in the state folder while the job runs, readable by its
    owner only, and on a cluster until ``stop_cluster_job``.

    Raises
    ------
    JobError
        If the job fails, or there is no checkpoint to resume from though earlier runs have
        committed; ``restart`` then continues from ``topic.start`` (rows may be duplicated). Or if
        messages were deleted before they were read, which ``accept_loss`` accepts; or if the topic
        is another one of the same name.
    ConfigurationError
        If the settings cannot be passed to the client of Kafka.
    UnknownNameError, OwnershipError
        As ``ingest_files``.
    """
    job = IngestJob(lake, source, state_dir, parallelism, cluster, progress)
    run = IngestRun(f"kafka-{source.name}-{topic.topic}", None)
    secrets = secret_folder(state_dir, source.name)
    folder = checkpoint_folder(job_state or state_dir, source, topic.topic)
    written = False

    def prepare(start: StreamStart) -> tuple[IngestStatements, str | None]:
        nonlocal written
        written = True
        security = {} if settings is None else client_properties(settings, secrets)
        reached = replace(topic, properties={**security, **topic.properties})
        topic_id = check_topic(
            reached,
            start.checkpoint,
            start.topic_id,
            accept_loss=accept_loss or restart,
            # a cluster may see brokers that this host does not
            must_reach=cluster is None,
        )
        return kafka_statements(
            source, reached, run, table_options.partition_days(lake, source.table)
        ), topic_id

    try:
        return follow(job, run, prepare, folder, checkpoint_interval_ms, restart)
    finally:
        # those of another job of this source, which has the tables, are not ours
        if written and cluster is None:
            remove_secrets(secrets)


def ingest_change_log(
    lake: Lake,
    source: EventSource,
    table: str,
    mapping: Mapping[str, str] | None = None,
    *,
    state_dir: Path,
    job_state: FilePath | None = None,
    bounded: bool = False,
    checkpoint_interval_ms: int = 1_000,
    parallelism: int = 2,
    cluster: str | None = None,
    progress: OnIngestProgress | None = None,
) -> str:
    """Load the changes of a table (``database.table``) into the source's events table.

    A first run starts with the content of the table, as insertions; a later one continues where
    the last one stopped. Exactly once: the position in the change log is part of the checkpoints
    with which the rows are committed. ``bounded`` stops with a savepoint after the changes up to
    the table's current snapshot, and compares the events with the rows of the table; otherwise it
    runs until it is stopped. Returns the job's id.

    Raises
    ------
    ConfigurationError
        If the table has no change log, or does not fit the source.
    UnknownNameError, OwnershipError, JobError
        As ``ingest_kafka``. There is no restart: the content of the table would be duplicated.
        JobError also if rows of the table were left out, since its change log does not have them.
    """
    opened, name = open_table(lake, table)
    columns = find_change_columns(opened, name, source, mapping or {})
    consumer = f"ingest-{lake.database}-{source.name}"
    newest = latest_snapshot(opened, name)
    goal = None if newest is None else newest.id
    log = ChangeLog(opened, name, columns, goal or 1, consumer)
    # part of the commit user, so it contains the full name of the table
    run = IngestRun(f"table-{source.name}-{log.name}", None)
    job = IngestJob(lake, source, state_dir, parallelism, cluster, progress)
    position = consumers(opened, name).get(consumer)
    if position is None:
        # the position of a run that resumes is not known before its start
        register_consumer(opened, name, consumer, earliest_snapshot_id(opened, name) or 1)

    def prepare(start: StreamStart) -> tuple[IngestStatements, None]:
        if start.checkpoint is None:
            # also backwards: one of this name may be left over from a source of this name
            register_consumer(opened, name, consumer, log.from_snapshot)
        elif position is not None:
            check_position(log, position, goal)
        return change_log_statements(
            source, log, run, table_options.partition_days(lake, source.table)
        ), None

    def reached() -> bool:
        return goal is None or consumers(opened, name).get(consumer, 0) > goal

    job_id = follow(
        job,
        run,
        prepare,
        checkpoint_folder(job_state or state_dir, source, log.name),
        checkpoint_interval_ms,
        until=reached if bounded else None,
        reads=[(opened, name)],
    )
    if bounded and goal is not None:
        check_complete(lake, source, log, goal)
    return job_id


def checkpoint_folder(job_state: FilePath, source: EventSource, topic: str) -> FilePath:
    """Return the folder of the checkpoints of a topic's stream; another topic has other offsets."""
    return job_state / CHECKPOINTS / f"ingest-{source.name}-{topic}"


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream starts: from ``checkpoint``, or without one; ``topic_id`` is Kafka's id of the
    topic that it read until now, None if it is not known."""

    checkpoint: Checkpoint | None
    topic_id: str | None


Prepare = Callable[[StreamStart], tuple[IngestStatements, str | None]]
"""Checks a start; returns the statements of the job, and the id of the topic that it reads."""


def follow(
    job: IngestJob,
    run: IngestRun,
    prepare: Prepare,
    folder: FilePath,
    checkpoint_interval_ms: int,
    restart: bool = False,
    until: Callable[[], bool] | None = None,
    reads: Sequence[tuple[Lake, str]] = (),
) -> str:
    """Run a stream from its last checkpoint in ``folder``; a new one from its start.

    ``prepare`` is called once the tables are owned; the source must keep its position in
    Flink's checkpoints. Once ``until`` returns True, the job is stopped with a savepoint. Events
    held for future timestamps that have passed since are released before the start. ``reads`` are
    the tables that it reads.
    """
    job.check()
    with ExitStack() as stack:
        job.hold(stack)
        job.ledger.settle_streams()
        tables = [*((job.lake, table) for table in job.tables), *reads]
        start = None if restart else resume_point(job.ledger, run, folder, tables)
        before = job.ledger.stream(run.id)
        known_topic = None if before is None or restart else before.topic_id
        statements, topic_id = prepare(StreamStart(start, known_topic))
        release_due(job.lake, job.source, now_ms())
        conf = {
            "execution.checkpointing.interval": f"{checkpoint_interval_ms} ms",
            "execution.checkpointing.dir": folder.as_uri(),
            **_memory_of_ids(job.source),
        }
        if start is not None:
            conf["execution.state-recovery.path"] = start.path.as_uri()
        job_id = new_job_id()
        begin(job.ledger, run, tables, job_id, start, topic_id, restart=restart)
        doing = f"following {folder.name}"
        try:
            return job.run(
                "streaming",
                statements,
                doing,
                conf=conf,
                checkpoints=folder,
                until=until,
                job_id=job_id,
                stream=run.id,
            )
        finally:
            if job.cluster is None or until is not None:
                # if the tables were taken over, the next owner has recorded the commits
                with suppress(OwnershipError):
                    job.ledger.settle_streams()


def _memory_of_ids(source: EventSource) -> dict[str, str]:
    """Return options for the state of event ids: on disk, with incremental checkpoints."""
    if source.horizon_ms is None:
        return {}
    return {
        "table.exec.state.ttl": f"{source.horizon_ms} ms",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
    }


@dataclass(frozen=True, slots=True)
class ClusterJobStatus:
    """A job on a cluster.

    ``rows_per_s`` is over its life, ``lag`` None where it is unknown; ``failure`` is why Flink last
    restarted or ended it, None if it has not.
    """

    job_id: str
    cluster: str
    state: str
    rows_read: int
    rows_per_s: float
    lag: int | None
    failure: str | None

    def __str__(self) -> str:
        behind = "" if self.lag is None else f", {self.lag:,} messages behind"
        failed = "" if self.failure is None else f"; its last failure: {self.failure}"
        return (
            f"job {self.job_id} on {self.cluster} is {self.state}: {self.rows_read:,} rows read "
            f"since its start, {self.rows_per_s:,.0f}/s{behind}{failed}"
        )

    def to_document(self) -> dict[str, object]:
        """Return as ``paimon-features ingest topic --status --json`` prints it."""
        return asdict(self)


def cluster_job_status(lake: Lake, source: EventSource) -> ClusterJobStatus:
    """Return the job of a source that was last submitted to a cluster.

    Raises
    ------
    UnknownNameError
        If there was none, or the cluster does not know it any more.
    JobError
        If the cluster does not answer.
    """
    sent = IngestLedger(lake, source).cluster_job()
    rest = None if sent is None else FlinkRest(sent.rest_url)
    state = None if rest is None or sent is None else rest.state(sent.job_id)
    if rest is None or sent is None or state is None:
        raise UnknownNameError(f"no job on a cluster ingests into {source.name!r}")
    read, elapsed_s = rest.source_records(sent.job_id), rest.running_s(sent.job_id)
    rate = read / elapsed_s if elapsed_s > 0 else 0.0
    lag = None if state in ENDED else rest.source_lag(sent.job_id)
    failure = rest.failure(sent.job_id)
    return ClusterJobStatus(sent.job_id, sent.rest_url, state, read, round(rate, 1), lag, failure)


def stop_cluster_job(
    lake: Lake, source: EventSource, state_dir: Path | None = None
) -> tuple[str, str | None]:
    """Stop the job on a cluster: returns its id, and the savepoint of a stream.

    A later run of the same topic resumes from the savepoint. A job over files is cancelled. Secrets
    of the job in ``state_dir`` are deleted.

    Raises
    ------
    UnknownNameError
        If no job runs.
    JobError
        If it cannot be reached, or the savepoint fails: the job then continues.
    """
    sent = IngestLedger(lake, source).cluster_job()
    state = None if sent is None else FlinkRest(sent.rest_url).state(sent.job_id)
    if sent is None or state is None or state in ENDED:
        raise UnknownNameError(
            f"no job on a cluster ingests into {source.name!r}; one in the foreground is stopped "
            "by Ctrl-C"
        )
    rest = FlinkRest(sent.rest_url)
    if sent.checkpoints is None:
        rest.cancel(sent.job_id)
        return sent.job_id, None
    savepoint = rest.stop_with_savepoint(sent.job_id, f"{sent.checkpoints}/{sent.job_id}")
    if state_dir is not None:
        record_end(state_dir, sent.job_id, "STOPPED")
        remove_secrets(secret_folder(state_dir, source.name))
    return sent.job_id, savepoint
