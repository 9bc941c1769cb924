"""Ingestion of a stream, a Kafka topic or a change log, resumed from its last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paimon_features.clock import now_ms
from paimon_features.definitions import EventSource
from paimon_features.errors import JobError, UnknownNameError
from paimon_features.flink.ingest.job import IngestJob
from paimon_features.flink.ingest.kafka_check import check_topic
from paimon_features.flink.ingest.kafka_security import (
    client_properties,
    remove_secrets,
    secret_folder,
)
from paimon_features.flink.sql.change_log import ChangeLog, find_change_columns, open_table
from paimon_features.flink.sql.ingest import (
    IngestStatements,
    change_log_statements,
    kafka_statements,
)
from paimon_features.flink.sql.kafka import KafkaTopic
from paimon_features.flink_rest import ENDED, FlinkRest
from paimon_features.ingestion.ingest_progress import OnIngestProgress
from paimon_features.ingestion.ledger import IngestLedger
from paimon_features.ingestion.runs import IngestRun
from paimon_features.job_control.restart import METADATA, find_checkpoints
from paimon_features.kafka_settings import KafkaSettings
from paimon_features.tables import Lake, latest_snapshot
from paimon_features.tables.consumers import consumers, register_consumer
from paimon_features.tables.json_files import read_json, write_json
from paimon_features.tables.reader import snapshots
from paimon_features.tables.release import release_due
from paimon_features.tables.snapshots import earliest_snapshot_id, snapshot_ids
from paimon_features.tables.storage.file_path import CHECKPOINTS, FilePath, modified_ns

_TABLES = "tables.json"
"""In a folder of checkpoints: when the tables that they belong to were created."""


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
        messages were deleted before they were read, which ``accept_loss`` accepts.
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

    def statements() -> IngestStatements:
        nonlocal written
        written = True
        found = {} if settings is None else client_properties(settings, secrets)
        reached = replace(topic, properties={**found, **topic.properties})
        if cluster is None:  # a cluster may see brokers that this host does not
            check_topic(reached, accept_loss or restart)
        return kafka_statements(source, reached, run, lake.partition_days(source.table))

    try:
        return follow(job, run, statements, folder, checkpoint_interval_ms, restart)
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
    the table's current snapshot; otherwise it runs until it is stopped. Returns the job's id.

    Raises
    ------
    ConfigurationError
        If the table has no change log, or does not fit the source.
    UnknownNameError, OwnershipError, JobError
        As ``ingest_kafka``. There is no restart: the content of the table would be duplicated.
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
    held = consumers(opened, name).get(consumer)
    # snapshots that the last run still needs stay protected; a first run protects its start
    first = earliest_snapshot_id(opened, name) or 1 if held is None else held
    register_consumer(opened, name, consumer, first)

    def reached() -> bool:
        return goal is None or consumers(opened, name).get(consumer, 0) > goal

    return follow(
        job,
        run,
        lambda: change_log_statements(source, log, run, lake.partition_days(source.table)),
        checkpoint_folder(job_state or state_dir, source, log.name),
        checkpoint_interval_ms,
        until=reached if bounded else None,
        reads=[(opened, name)],
    )


def checkpoint_folder(job_state: FilePath, source: EventSource, topic: str) -> FilePath:
    """The folder of the checkpoints of a topic's stream; another topic has other offsets."""
    return job_state / CHECKPOINTS / f"ingest-{source.name}-{topic}"


def follow(
    job: IngestJob,
    run: IngestRun,
    statements: Callable[[], IngestStatements],
    folder: FilePath,
    checkpoint_interval_ms: int,
    restart: bool = False,
    until: Callable[[], bool] | None = None,
    reads: Sequence[tuple[Lake, str]] = (),
) -> str:
    """Run a stream from its last checkpoint in ``folder``; a new one from its start.

    ``statements`` is called once the tables are owned; the source must keep its position in
    Flink's checkpoints. Once ``until`` returns True, the job is stopped with a savepoint. Events
    held for future timestamps that have passed since are released before the start. ``reads`` are
    the tables that it reads.
    """
    job.check()
    with ExitStack() as stack:
        job.hold(stack)
        release_due(job.lake, job.source, now_ms())
        conf = {
            "execution.checkpointing.interval": f"{checkpoint_interval_ms} ms",
            "execution.checkpointing.dir": folder.as_uri(),
            **_memory_of_ids(job.source),
        }
        checkpoint = None if restart else recovery_path(job.lake, job.tables, run, folder)
        tables = [*((job.lake, table) for table in job.tables), *reads]
        if checkpoint is not None:
            check_same_tables(tables, folder)
        _write_json(folder / _TABLES, creation_times(tables))
        if checkpoint is not None:
            conf["execution.state-recovery.path"] = checkpoint.as_uri()
        doing = f"following {folder.name}"
        return job.run("streaming", statements(), doing, conf=conf, checkpoints=folder, until=until)


def _memory_of_ids(source: EventSource) -> dict[str, str]:
    """Options for the state of event ids: on disk, with incremental checkpoints."""
    if source.horizon_ms is None:
        return {}
    return {
        "table.exec.state.ttl": f"{source.horizon_ms} ms",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
    }


def recovery_path(
    lake: Lake, tables: tuple[str, ...], run: IngestRun, folder: FilePath
) -> FilePath | None:
    """The checkpoint from which a stream resumes, None for a first run.

    Raises
    ------
    JobError
        If a table contains a commit of an earlier run that is newer than any checkpoint.
    """
    found = find_checkpoints(folder)
    # numbers start again after --restart, so the one that was written last counts; of two in one
    # tick of the file system's clock, the one with the greater number
    newest = max(found, key=lambda c: (modified_ns(c.path / METADATA), c.id), default=None)
    for table in tables:
        ids = snapshot_ids(lake, table)
        mine = [
            snapshot.commit_identifier
            for snapshot in snapshots(lake, table, ids[0] if ids else None)
            if run.made(snapshot.commit_user)
        ]
        if mine and (newest is None or mine[-1] > newest.id):
            there = "there is none" if newest is None else f"the newest is {newest.id}"
            raise JobError(
                f"table {table!r} contains checkpoint {mine[-1]} of this stream, and in {folder} "
                f"{there}: rows since then would be duplicated. Restore the checkpoint, or accept "
                "that by --restart (with --kafka), or define a source under another name"
            )
    return None if newest is None else newest.path


def check_same_tables(tables: Iterable[tuple[Lake, str]], folder: FilePath) -> None:
    """Raise JobError if one was created again since the checkpoints in ``folder`` were written.

    Their positions are those of the earlier table, or of what was written into it.
    """
    known = _read_json(folder / _TABLES) or {}
    for path, created_ms in creation_times(tables).items():
        if known.get(path, created_ms) != created_ms:
            raise JobError(
                f"table {path} was dropped and created again since the checkpoints in {folder} "
                "were written: to resume from them would leave out the rows before. Delete this "
                "folder to start from the beginning; --restart (with --kafka) continues from the "
                "group's offsets"
            )


def _read_json(path: FilePath) -> Any | None:
    if isinstance(path, Path):
        return read_json(path)
    try:
        return json.loads(path.storage.read_text(path.address))
    except FileNotFoundError:
        return None


def _write_json(path: FilePath, value: Mapping[str, Any]) -> None:
    if isinstance(path, Path):
        write_json(path, value)
    else:
        path.storage.write_json(path.address, value)


def creation_times(tables: Iterable[tuple[Lake, str]]) -> dict[str, int]:
    """When tables were created (UTC ms), by their paths."""
    return {lake.path(name): lake.created_ms(name) for lake, name in tables}


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
        """As ``paimon-features ingest --status --json`` prints it."""
        return asdict(self)


def cluster_job_status(lake: Lake, source: EventSource) -> ClusterJobStatus:
    """The job of a source that was last submitted to a cluster.

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
        remove_secrets(secret_folder(state_dir, source.name))
    return sent.job_id, savepoint
