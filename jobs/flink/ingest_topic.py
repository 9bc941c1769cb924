"""Ingesting a Kafka topic: a stream that goes on from its last checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from jobs.flink.ingest_job import IngestJob, Report
from jobs.logic.columns import KafkaTopic
from jobs.logic.ingest import IngestStatements, Run, kafka_statements
from jobs.logic.ledger import Ledger
from jobs.logic.rest import ENDED, FlinkRest
from jobs.logic.restart import find_checkpoints
from paimon_features.definitions import EventSource
from paimon_features.errors import JobError, UnknownNameError
from paimon_features.tables import Lake
from paimon_features.tables.reader import snapshots
from paimon_features.tables.snapshots import snapshot_ids


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
    report: Report | None = None,
) -> str:
    """Bring a Kafka topic into the source's events table, until it is stopped.

    Exactly once: the offsets are part of the checkpoints with which the rows are committed. A
    later run goes on from the last checkpoint. Returns the job's id; without ``cluster`` it
    returns when the job has ended, with it the job runs on, detached.

    The tests have no broker: the SQL is tested up to Flink's plan; checkpoints, commits and
    restarts with a watched folder in the topic's place. It was run against Kafka 3.9 by hand.

    Raises
    ------
    JobError
        If the job fails, or there is no checkpoint to go on from though earlier runs have
        committed; ``restart`` then goes on from the group's offsets (some rows may come twice).
    UnknownNameError, OwnershipError
        As ``ingest_files``.
    """
    run = Run(f"kafka-{source.name}-{topic.topic}", None)
    job = IngestJob(lake, source, state_dir, parallelism, cluster, report)
    statements = kafka_statements(source, topic, run)
    folder = checkpoint_folder(state_dir, source, topic.topic)
    return follow(job, run, statements, folder, checkpoint_interval_ms, restart)


def checkpoint_folder(state_dir: Path, source: EventSource, topic: str) -> Path:
    """Where the checkpoints of a topic's stream are; another topic has other offsets."""
    return state_dir / "checkpoints" / f"ingest-{source.name}-{topic}"


def follow(
    job: IngestJob,
    run: Run,
    statements: IngestStatements,
    folder: Path,
    checkpoint_interval_ms: int,
    restart: bool = False,
) -> str:
    """Run a stream from its last checkpoint in ``folder``, or from its start if it is a new one.

    The statements' source has to keep its position in Flink's checkpoints.
    """
    job.check()
    with ExitStack() as stack:
        job.hold(stack)
        conf = {
            "execution.checkpointing.interval": f"{checkpoint_interval_ms} ms",
            "execution.checkpointing.dir": folder.as_uri(),
        }
        checkpoint = None if restart else recovery_path(job.lake, job.tables, run, folder)
        if checkpoint is not None:
            conf["execution.state-recovery.path"] = checkpoint.as_uri()
        doing = f"following {folder.name}"
        return job.run("streaming", statements, doing, conf=conf, checkpoints=folder)


def recovery_path(lake: Lake, tables: tuple[str, ...], run: Run, folder: Path) -> Path | None:
    """The checkpoint from which a stream goes on, None for a first run.

    Raises
    ------
    JobError
        If a table holds a commit of an earlier run that is newer than any checkpoint.
    """
    found = find_checkpoints(folder)
    # numbers begin anew after --restart, so the last one that was written counts
    newest = max(found, key=lambda c: (c.path / "_metadata").stat().st_mtime_ns, default=None)
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
                f"table {table!r} holds checkpoint {mine[-1]} of this stream, and in {folder} "
                f"{there}: rows since then would come twice. Bring the checkpoint back, or accept "
                "that by --restart"
            )
    return None if newest is None else newest.path


def stop_cluster_job(lake: Lake, source: EventSource) -> tuple[str, str | None]:
    """Stop the job that was sent to a cluster: its id, and the savepoint of a stream.

    A later run of the same topic goes on from the savepoint. A job over files is cancelled.

    Raises
    ------
    UnknownNameError
        If none runs.
    JobError
        If it cannot be reached, or the savepoint fails: the job goes on then.
    """
    sent = Ledger(lake, source).cluster_job()
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
    savepoint = rest.stop_with_savepoint(sent.job_id, Path(sent.checkpoints) / sent.job_id)
    return sent.job_id, savepoint
