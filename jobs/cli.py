"""``ingest`` and ``cluster``: events into the lake, and a Flink cluster on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.cluster_option import CLUSTER, cluster_address
from paimon_features.cli.options import JSON, PROJECT
from paimon_features.errors import ConfigurationError
from paimon_features.project import Project

if TYPE_CHECKING:
    from jobs.flink.cluster import ClusterStatus, LocalCluster
    from jobs.flink.ingest import IngestResult


@click.command()
@click.argument("source")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="COLUMN=NAME",
    help="A column of the source and its name in the files; may be repeated.",
)
@click.option("--again", is_flag=True, help="Ingest files that were ingested before once more.")
@click.option("--kafka", metavar="HOST:PORT,...", help="Read a topic of these brokers, not files.")
@click.option("--topic", help="With --kafka: the topic.")
@click.option("--group", help="With --kafka: the consumer group; default: paimon-features-SOURCE.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json"]),
    default="json",
    show_default=True,
    help="With --kafka: one JSON object per message.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="With --kafka: without a checkpoint go on at the group's offsets; rows may come twice.",
)
@CLUSTER
@PROJECT
@JSON
def ingest(
    source: str,
    paths: tuple[Path, ...],
    columns: tuple[str, ...],
    again: bool,
    kafka: str | None,
    topic: str | None,
    group: str | None,
    form: str,
    restart: bool,
    cluster: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Bring events into SOURCE: files (each once, in one commit), or a Kafka topic.

    PATHS are CSV, Parquet or JSON-lines files (.csv .parquet .jsonl .ndjson, text also .gz), or
    folders of them. A row that cannot be an event (unreadable, wrong type, no time ...) is kept
    in rejected_SOURCE with the reason; the reasons are counted at the end. Columns are found by
    name, whatever its case and underscores: CustomerID is customer_id. Times are milliseconds
    since 1970, timestamps, or texts like 2010-12-01 08:26; all are UTC.

    \b
    paimon-features ingest retail events.parquet
    paimon-features ingest retail exports/ --column invoice_time_ms=InvoiceDate
    paimon-features ingest retail fixed.csv --again
    paimon-features ingest clicks --kafka broker:9092 --topic clicks

    An interrupted run is finished by the next one. With --kafka the job runs until Ctrl-C, or
    detached with --cluster, and goes on at its last checkpoint when it is started again. That
    job's SQL is tested up to Flink's plan; this project has not run it against a broker.
    """
    project = Project.open(path)
    address = cluster_address(project.config.state_dir, cluster)
    if kafka is not None:
        if paths or not topic or again:
            raise ConfigurationError("--kafka takes --topic, and neither PATHS nor --again")
        _ingest_topic(project, source, (kafka, topic, group), columns, restart, address, as_json)
        return
    if not paths:
        raise ConfigurationError("name the files or folders to ingest, or --kafka and --topic")
    if topic or group or restart:
        raise ConfigurationError("--topic, --group and --restart go with --kafka")
    from jobs.flink.ingest import ingest_files
    from jobs.logic.inputs import parse_mapping

    result = ingest_files(
        project.lake,
        project.definitions.source(source),
        paths,
        parse_mapping(columns),
        again=again,
        parallelism=project.config.flink.parallelism,
        cluster=address,
        state_dir=project.config.state_dir,
        tick=_progress(f"ingesting into {source}", as_json),
    )
    if as_json:
        click.echo(json.dumps(_document(result), indent=2))
    else:
        _tell(source, result)


@click.group()
def cluster() -> None:
    """Start, stop or look at a Flink session cluster on this machine.

    It runs from the installed Flink wheel, on the loopback interface and free ports, with
    configuration, logs and checkpoints in the project's state folder. Jobs on it go on when
    their client is gone.

    \b
    paimon-features cluster start --slots 8
    paimon-features submit customer_spend --cluster
    paimon-features cluster status
    paimon-features cluster stop
    """


@cluster.command()
@click.option("--task-managers", type=int, default=None, help="Worker processes; default: 1.")
@click.option("--slots", type=int, default=None, help="Parallel tasks of each; default: 8.")
@click.option("--memory-mb", type=int, default=None, help="Of each worker; default: 2048.")
@PROJECT
@JSON
def start(
    task_managers: int | None, slots: int | None, memory_mb: int | None, path: str, as_json: bool
) -> None:
    """Start the cluster; harmless if it runs."""
    from jobs.flink.cluster import ClusterShape

    given = {"task_managers": task_managers, "slots": slots, "task_manager_mb": memory_mb}
    sizes = {name: size for name, size in given.items() if size is not None}
    local = _local_cluster(path)
    local.start(ClusterShape(**sizes) if sizes else None)
    _show(local.status(), as_json)


@cluster.command()
@PROJECT
@JSON
def status(path: str, as_json: bool) -> None:
    """Show address, slots, processes and jobs. Exit code 1 where no cluster runs."""
    found = _local_cluster(path).status()
    _show(found, as_json)
    if not found.running:
        sys.exit(1)


@cluster.command()
@PROJECT
@JSON
def stop(path: str, as_json: bool) -> None:
    """End the cluster and the jobs on it; their checkpoints stay. Harmless if none runs.

    'paimon-features cancel' stops a job with a savepoint before.
    """
    pids = _local_cluster(path).stop()
    if as_json:
        click.echo(json.dumps({"stopped_pids": pids}))
    elif pids:
        click.echo(f"stopped; the processes {', '.join(map(str, pids))} have ended")
    else:
        click.echo("no cluster runs")


def _ingest_topic(
    project: Project,
    source: str,
    address: tuple[str, str, str | None],
    columns: tuple[str, ...],
    restart: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    from jobs.flink.ingest import ingest_kafka
    from jobs.logic.inputs import KafkaTopic, json_columns, parse_mapping

    defined = project.definitions.source(source)
    servers, name, group = address
    found = json_columns(defined, parse_mapping(columns))
    topic = KafkaTopic(servers, name, group or f"paimon-features-{source}", found)
    try:
        job_id = ingest_kafka(
            project.lake,
            defined,
            topic,
            state_dir=project.config.state_dir,
            checkpoint_interval_ms=project.config.flink.checkpoint_interval_ms,
            parallelism=project.config.flink.parallelism,
            cluster=cluster,
            restart=restart,
            tick=_progress(f"topic {name} into {source}", as_json),
        )
    except KeyboardInterrupt:
        click.echo(f"\nstopped; 'paimon-features ingest {source} --kafka ...' goes on", err=True)
        return
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "cluster": cluster}))
    else:
        click.echo(f"job {job_id} runs on {cluster}")


def _local_cluster(path: str) -> LocalCluster:
    from jobs.flink.cluster import LocalCluster

    return LocalCluster(Project.open(path).config.state_dir)


def _progress(doing: str, as_json: bool) -> Callable[[float], None] | None:
    """A line that is written over on a terminal; nothing where a program reads."""
    if as_json or not sys.stderr.isatty():
        return None
    shown = [0.0]

    def tick(elapsed_s: float) -> None:
        if time.monotonic() - shown[0] >= 1:
            shown[0] = time.monotonic()
            # files are committed at once, at the end, so until then there is no number of rows
            click.echo(f"\r{doing}: {elapsed_s:.0f} s", nl=False, err=True)

    return tick


def _document(result: IngestResult) -> dict[str, object]:
    return {
        "run_id": result.run_id,
        "rows": result.accepted,
        "rejected": dict(result.rejected),
        "examples": dict(result.examples),
        "seconds": round(result.elapsed_s, 3),
        "files": result.files,
        "skipped": dict(result.skipped),
        "ignored_columns": result.ignored_columns,
        "events_snapshot": result.events_snapshot,
        "finished_run": result.finished_run,
    }


def _tell(source: str, result: IngestResult) -> None:
    if result.finished_run:
        click.echo(f"run {result.finished_run} had been interrupted and is finished now")
    for path, why in result.skipped:
        click.echo(f"skipped {path}: {why} (--again takes it once more)")
    if result.run_id is None:
        click.echo("nothing new to ingest")
        return
    if result.ignored_columns:
        click.echo(f"columns that {source} does not have: {', '.join(result.ignored_columns)}")
    bad = sum(result.rejected.values())
    rate = (result.accepted + bad) / max(result.elapsed_s, 1e-9)
    files = f"{len(result.files)} file{'s' if len(result.files) > 1 else ''}"
    click.echo(
        f"{result.accepted:,} events from {files} in {result.elapsed_s:.1f} s "
        f"({rate:,.0f} rows/s), events_{source} is at snapshot {result.events_snapshot or '-'}"
    )
    if bad:
        click.echo(f"{bad:,} rows are kept in rejected_{source}:")
        for reason, rows in result.rejected.items():
            click.echo(f"  {rows:>9,}  {reason:<18} e.g. {result.examples[reason]}")


def _show(found: ClusterStatus, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    if not found.running:
        gone = (
            f"; lost processes: {', '.join(map(str, found.lost_pids))}" if found.lost_pids else ""
        )
        click.echo(f"no cluster runs{gone}; 'paimon-features cluster start' starts one")
        return
    click.echo(f"address  {found.address}   (http://{found.address} shows its jobs)")
    click.echo(f"slots    {found.slots_free} free of {found.slots_total}")
    click.echo(f"pids     {', '.join(map(str, found.pids))}")
    click.echo(f"logs     {found.log_dir}")
    for job in found.jobs:
        since = datetime.fromtimestamp(job.start_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"job      {job.id}  {job.state:<10} since {since} UTC  {job.name}")
