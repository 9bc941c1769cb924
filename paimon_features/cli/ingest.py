"""``ingest``: events into the lake, from files or from a topic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli import INTERRUPTED
from paimon_features.cli._cluster_address import CLUSTER, cluster_address
from paimon_features.cli._ingest_kafka import (
    STOPPED,
    TopicOptions,
    ingest_topic,
    print_status,
    stream_options,
)
from paimon_features.cli._inputs import INPUT
from paimon_features.cli._names import SOURCE_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process import light_imports
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.ingest.file_ingestion import IngestResult


@click.command()
@click.argument("source", shell_complete=SOURCE_NAME)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["flink", "local"]),
    help="Flink, or this process, which needs no Java and ingests files only; default: engine "
    "under [project], else flink.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="COLUMN=NAME",
    help="A column of the source and its name in the files; repeatable.",
)
@click.option("--again", is_flag=True, help="Ingest files again that were ingested before.")
@click.option(
    "--mark-ingested",
    is_flag=True,
    help="Record files as ingested without reading them, to rebuild a lost ledger.",
)
@click.option(
    "--max-line-bytes",
    type=click.IntRange(1_000, 256 << 20),
    default=8 << 20,
    show_default=True,
    help="Longer lines of text files, and longer messages, are rejected.",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT,...",
    help="The brokers of --topic; default: brokers under [kafka].",
)
@click.option("--topic", help="Read this topic: one JSON object per message.")
@click.option("--group", help="With --topic: the consumer group; default: paimon-features-SOURCE.")
@click.option(
    "--format",
    "message_format",
    type=click.Choice(["json", "debezium-json"]),
    help="With --topic: what a message is; default: json, an event. debezium-json: a change of a "
    "row, or two.",
)
@click.option(
    "--start",
    metavar="earliest|latest|committed|TIME",
    help="With --topic: where a run without a checkpoint begins; default: committed, the group's "
    "offsets, or the beginning if there are none.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="With --topic: without a checkpoint, begin at --start; rows may repeat or be left out.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --topic: continue though messages were deleted before they were read.",
)
@click.option(
    "--from-table",
    "table",
    metavar="DATABASE.TABLE",
    help="Read the change log of a table of the warehouse.",
)
@click.option(
    "--bounded", is_flag=True, help="With --from-table: stop after ingesting all current changes."
)
@click.option("--stop", is_flag=True, help="Stop the job of this source that runs on a cluster.")
@click.option(
    "--status", is_flag=True, help="Show the job of this source on a cluster: rows read, rate, lag."
)
@INPUT
@CLUSTER
@PROJECT
@JSON
def ingest(
    source: str,
    paths: tuple[Path, ...],
    engine: str | None,
    columns: tuple[str, ...],
    again: bool,
    mark_ingested: bool,
    max_line_bytes: int,
    kafka: str | None,
    topic: str | None,
    group: str | None,
    message_format: str | None,
    start: str | None,
    restart: bool,
    accept_loss: bool,
    table: str | None,
    bounded: bool,
    stop: bool,
    status: bool,
    options: tuple[str, ...],
    cluster: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Ingest events into SOURCE: files (each once, in one commit), a Kafka topic, a change log.

    PATHS are CSV, Parquet or JSON-lines files (.csv .parquet .jsonl .ndjson, text also .gz), or
    folders of them. A row that is not a valid event (unreadable, wrong type, no time ...) is
    written to rejected_SOURCE with the reason; reasons are counted at the end. Columns are matched
    by name, ignoring case and underscores: CustomerID matches customer_id. Times are milliseconds
    since 1970, timestamps, or texts of RFC 3339 such as 2010-12-01T08:26:30+01:00; a text
    without an offset, such as 2010-12-01 08:26, is UTC.

    \b
    paimon-features ingest retail events.parquet
    paimon-features ingest retail events.parquet --engine local        # without Java
    paimon-features ingest retail umsatz.csv --engine local --input "delimiter=;" --input decimal=,
    paimon-features ingest retail exports/ --column invoice_time_ms=InvoiceDate
    paimon-features ingest retail fixed.csv --again
    paimon-features ingest retail exports/ --mark-ingested   # after the loss of the ledger
    paimon-features ingest clicks --kafka broker:9092 --topic clicks
    paimon-features ingest clicks --topic clicks --column user_id=kafka:key --start latest
    paimon-features ingest orders --topic shop.public.orders --format debezium-json
    paimon-features ingest orders --from-table shop.orders             # until Ctrl-C
    paimon-features ingest orders --from-table shop.orders --bounded   # all current changes

    --engine local reads other forms, too: CSV in any dialect (--input, or [inputs.SOURCE] of
    paimon-features.toml), JSON arrays, Avro, ORC, Arrow, and the folder of a Delta, Iceberg or
    Paimon table.

    Both engines accept the same rows and reject the others for the same reasons; either one
    finishes what the other began. --engine local is the faster one on one machine; topics, change
    logs and clusters require Flink.

    --from-table reads a table with a primary key and a change log (changelog-producer): its
    current rows, then each change. The retraction column of SOURCE is set from the row kind.

    Events ahead of the clock by more than max_skew are held in rejected_SOURCE; each run first
    releases those that are due ('paimon-features maintain --only release' does only that).

    An interrupted run has committed nothing, or is completed by the next one. With --topic the
    job runs until Ctrl-C, or detached with --cluster until --stop, and resumes from its last
    checkpoint when started again: each message counts once, whatever was killed in between. A
    column is filled from the message itself by --column COLUMN=kafka:key, kafka:timestamp,
    kafka:header:NAME, kafka:partition, kafka:offset or kafka:topic. TLS and logins are settings
    under [kafka] in paimon-features.toml; a password comes from PAIMON_FEATURES_KAFKA_PASSWORD or
    password_file.
    """
    given = TopicOptions(kafka, topic, group, message_format, start, restart, accept_loss)
    others = bool(again or given.given or table or bounded)
    if mark_ingested:
        if others or stop or status:
            raise ConfigurationError("--mark-ingested takes nothing but the source and PATHS")
        _mark(Project.open(path), source, paths, as_json)
        return
    if engine == "local" and (stop or status or table is not None or given.given or cluster):
        raise ConfigurationError(
            "--engine local ingests files in this process; --topic, --from-table, --cluster, "
            "--stop and --status concern Flink's jobs: leave out --engine local "
            "('paimon-features check installation' shows whether Flink can run here)"
        )
    if stop or status:
        if paths or others or (stop and status):
            name = "--stop" if stop else "--status"
            raise ConfigurationError(f"{name} takes nothing but the source")
        (_stop if stop else print_status)(Project.open(path), source, as_json)
        return
    _check_options(paths, again, given, table, bounded)
    project = Project.open(path)
    if engine is None:
        # topics and change logs are read by Flink only
        only_flink = topic is not None or table is not None or cluster is not None
        engine = "flink" if only_flink else project.config.engine
    if engine == "local":
        light_imports.enable()
    settings = InputSettings.of(source, project.config.inputs.get(source, {}))
    if options:
        settings = settings.with_options(source, options)
    if engine == "flink" and not settings.is_default:
        raise ConfigurationError(
            f"[inputs.{source}] {', '.join(sorted(settings.changed - {'columns'}))}: Flink reads "
            "files as they are; add --engine local, which reads them so"
        )
    address = None if engine == "local" else cluster_address(project.config.state_dir, cluster)
    if topic is not None:
        job_id = ingest_topic(project, source, given, columns, max_line_bytes, address, as_json)
        if job_id is not None:
            _print_running(source, job_id, address, as_json)
        return
    if table is not None:
        _ingest_table(project, source, table, columns, bounded, address, as_json)
        return
    from paimon_features.ingest.input_columns import parse_mapping
    from paimon_features.ingest.local.sampling import choose_partitions
    from paimon_features.project.engines import resolve_engine

    engine_settings: dict[str, Any] = (
        {"threads": None, "settings": settings}
        if engine == "local"
        else {
            "parallelism": project.config.flink.parallelism,
            "cluster": address,
            "choose_partitions": choose_partitions,
        }
    )
    try:
        with ProgressLine(as_json, events=as_json) as line:
            result = resolve_engine(engine).ingest_files(
                project.lake,
                project.definitions.source(source),
                paths,
                {**settings.columns, **parse_mapping(columns)},
                state_dir=project.config.state_dir,
                again=again,
                progress=line,
                max_line_bytes=max_line_bytes,
                **engine_settings,
            )
    except KeyboardInterrupt:
        click.echo(
            "interrupted; repeat the same command: each row is ingested exactly once", err=True
        )
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps(result.to_document(), indent=2))
    else:
        click.echo("\n".join(_summary(source, result)))


def _mark(project: Project, source: str, paths: tuple[Path, ...], as_json: bool) -> None:
    from paimon_features.ingest.file_ingestion import mark_ingested

    choice = mark_ingested(project.lake, project.definitions.source(source), paths)
    marked = [str(file.path) for file in choice.new]
    if as_json:
        skipped = {str(file.path): why for file, why in choice.skipped}
        click.echo(json.dumps({"marked": marked, "skipped": skipped}, indent=2))
        return
    for file, why in choice.skipped:
        click.echo(f"skipped {file.path}: {why}")
    files = "1 file is" if len(marked) == 1 else f"{len(marked)} files are"
    click.echo(f"{files} recorded as ingested into {source}; nothing was read")


def _check_options(
    paths: tuple[Path, ...], again: bool, topic: TopicOptions, table: str | None, bounded: bool
) -> None:
    if bounded and table is None:
        raise ConfigurationError("--bounded requires --from-table; files are bounded anyway")
    if table is not None:
        if topic.restart:
            raise ConfigurationError(
                "--restart with --from-table would ingest the complete table a second time; "
                "define a source under another name"
            )
        if paths or again or topic.given:
            raise ConfigurationError("--from-table takes neither PATHS nor --again nor --kafka")
    elif topic.topic is not None or topic.kafka is not None:
        if paths or again or not topic.topic:
            raise ConfigurationError("--kafka takes --topic, and neither PATHS nor --again")
    elif topic.given:
        raise ConfigurationError(
            "--group, --format, --start, --restart and --accept-loss require --topic"
        )
    elif not paths:
        raise ConfigurationError(
            "name the files or folders to ingest, or --kafka and --topic, or --from-table"
        )


def _ingest_table(
    project: Project,
    source: str,
    table: str,
    columns: tuple[str, ...],
    bounded: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    from paimon_features.ingest.flink.topic import ingest_change_log
    from paimon_features.ingest.input_columns import parse_mapping
    from paimon_features.lake import latest_snapshot

    defined = project.definitions.source(source)
    try:
        with ProgressLine(as_json, events=as_json) as line:
            job_id = ingest_change_log(
                project.lake,
                defined,
                table,
                parse_mapping(columns),
                bounded=bounded,
                **stream_options(project, cluster, line),
            )
    except KeyboardInterrupt:
        click.echo(STOPPED, err=True)
        return
    if not bounded:
        _print_running(source, job_id, cluster, as_json)
        return
    newest = latest_snapshot(project.lake, defined.table)
    snapshot = None if newest is None else newest.id
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "events_snapshot": snapshot}))
    else:
        click.echo(
            f"the changes of {table} so far are in, and all its rows are among the events; "
            f"{defined.table} is at snapshot {snapshot or '-'}; the same command continues from "
            "there"
        )


def _print_running(source: str, job_id: str, cluster: str | None, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "cluster": cluster}))
    else:
        stops = f"'paimon-features ingest {source} --stop' stops it"
        click.echo(f"job {job_id} runs on {cluster}; {stops}")


def _stop(project: Project, source: str, as_json: bool) -> None:
    from paimon_features.ingest.flink.topic import stop_cluster_job

    job_id, savepoint = stop_cluster_job(
        project.lake, project.definitions.source(source), project.config.state_dir
    )
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "savepoint": savepoint}))
    elif savepoint is None:
        click.echo(f"job {job_id} is cancelled; the next 'ingest' reports its state")
    else:
        click.echo(f"job {job_id} is stopped, savepoint {savepoint}; 'ingest' resumes from it")


def _summary(source: str, result: IngestResult) -> list[str]:
    lines = []
    if result.finished_run:
        lines.append(f"run {result.finished_run} had been interrupted and is now finished")
    if result.forgotten_files:
        files = ", ".join(result.forgotten_files)
        lines.append(f"an interrupted run had committed nothing of {files}: ingest that again")
    for path, why in result.skipped:
        lines.append(f"skipped {path}: {why} (--again ingests it again)")
    if result.released:
        lines.append(f"{result.released:,} held events released")
    if result.run_id is None:
        return [*lines, "nothing new to ingest"]
    if result.ignored_columns:
        lines.append(f"columns that {source} does not have: {', '.join(result.ignored_columns)}")
    if result.absent_columns:
        names = ", ".join(result.absent_columns)
        lines.append(f"keys missing from the first rows, read as null: {names}")
    bad = sum(result.rejected.values())
    rate = (result.accepted + bad) / max(result.elapsed_s, 1e-9)
    files = f"{len(result.files)} file{'s' if len(result.files) > 1 else ''}"
    lines.append(
        f"{result.accepted:,} events from {files} in {result.elapsed_s:.1f} s "
        f"({rate:,.0f} rows/s), events_{source} is at snapshot {result.events_snapshot or '-'}"
    )
    if bad:
        lines.append(f"{bad:,} row{'s are' if bad > 1 else ' is'} kept in rejected_{source}:")
    for reason, rows in result.rejected.items():
        lines.append(f"  {rows:>9,}  {reason:<18} e.g. {result.examples[reason]}")
    return lines
