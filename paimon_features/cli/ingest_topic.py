"""``ingest topic``: a Kafka topic, in the foreground or detached on a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from paimon_features.cli._ingest_jobs import (
    COLUMNS,
    MAX_LINE_BYTES,
    SOURCE,
    STATUS,
    STOP,
    STOPPED,
    print_running,
    stop_or_show,
    stream_options,
)
from paimon_features.cli._options import CLUSTER, JSON, PROJECT, cluster_address, time_ms
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.cli._shared_options import changes_data, grouped
from paimon_features.core.configuration.kafka_settings import KafkaSettings, check_brokers
from paimon_features.core.errors import ConfigurationError
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.definitions import EventSource
    from paimon_features.ingest.flink.kafka_sql import KafkaTopic
    from paimon_features.ingest.ingest_progress import IngestProgress


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options that say which topic is read, and how."""

    topic: str | None
    kafka: str | None
    group: str | None
    message_format: str
    start: str | None
    columns: tuple[str, ...]
    max_line_bytes: int


@click.command()
@SOURCE
@click.argument("topic", required=False)
@click.option(
    "--kafka", metavar="HOST:PORT,...", help="The brokers; default: brokers under [kafka]."
)
@click.option("--group", help="The consumer group; default: paimon-features-SOURCE.")
@click.option(
    "--format",
    "message_format",
    type=click.Choice(["json", "debezium-json"]),
    default="json",
    show_default=True,
    help="What a message is: an event, or with debezium-json a change of a row, or two.",
)
@click.option(
    "--start",
    metavar="earliest|latest|committed|TIME",
    help="Where a run without a checkpoint begins; default: committed, the group's offsets, or the "
    "beginning if there are none.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Without a checkpoint, begin at --start; rows may repeat or be left out.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Continue though messages were deleted before they were read.",
)
@COLUMNS
@MAX_LINE_BYTES
@CLUSTER
@STOP
@STATUS
@changes_data("stop", "status")
@grouped(TopicOptions, "reading")
@PROJECT
@JSON
def topic(
    source: str,
    reading: TopicOptions,
    restart: bool,
    accept_loss: bool,
    cluster: str | None,
    stop: bool,
    status: bool,
    path: str,
    as_json: bool,
) -> None:
    """Ingest a Kafka TOPIC into SOURCE: one JSON object per message.

    \b
    paimon-features ingest topic clicks shop.clicks --kafka broker:9092
    paimon-features ingest topic clicks shop.clicks --cluster   # detached
    paimon-features ingest topic clicks --status
    paimon-features ingest topic clicks --stop
    paimon-features ingest topic clicks shop.clicks --column user_id=kafka:key --start latest
    paimon-features ingest topic orders shop.public.orders --format debezium-json

    The job runs on Flink until Ctrl-C, or detached with --cluster until --stop, and resumes from
    its last checkpoint when started again: each message counts once, whatever was killed in
    between. A message that is not a valid event is written to rejected_SOURCE with the reason.

    A column is filled from the message itself by --column COLUMN=kafka:key, kafka:timestamp,
    kafka:header:NAME, kafka:partition, kafka:offset or kafka:topic. TLS and logins are settings
    under [kafka] in paimon-features.toml; a password comes from PAIMON_FEATURES_KAFKA_PASSWORD or
    password_file.
    """
    if stop_or_show(path, source, stop, status, as_json):
        return
    if not reading.topic:
        raise ConfigurationError("name the topic to ingest")
    from paimon_features.ingest.flink.topic import ingest_kafka

    project = Project.open(path)
    defined = project.definitions.source(source)
    address = cluster_address(project.config.state_dir, cluster)
    settings = KafkaSettings.of(project.config.kafka, project.root)
    kafka_topic = _kafka_topic(defined, reading, settings)
    with ProgressLine(as_json, events=as_json) as line:
        progress = _LastProgress(line)
        try:
            job_id = ingest_kafka(
                project.lake,
                defined,
                kafka_topic,
                restart=restart,
                accept_loss=accept_loss,
                settings=settings,
                **stream_options(project, address, progress),
            )
        except KeyboardInterrupt:
            job_id = None
    if job_id is None:
        _print_stopped(progress.last, as_json)
    else:
        print_running(f"topic {source}", job_id, address, as_json)


def _kafka_topic(source: EventSource, options: TopicOptions, settings: KafkaSettings) -> KafkaTopic:
    from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
    from paimon_features.ingest.input_columns import parse_mapping

    return KafkaTopic(
        brokers_of(options.kafka, settings),
        options.topic or "",
        options.group or f"paimon-features-{source.name}",
        topic_columns(source, parse_mapping(options.columns), options.message_format),
        options.message_format,
        start_position(options.start),
        max_bytes=options.max_line_bytes,
        discovery_ms=settings.discovery_ms,
    )


def brokers_of(option: str | None, settings: KafkaSettings) -> str:
    """Return the brokers of ``--kafka``, else those of the project.

    Raises
    ------
    ConfigurationError
        If neither names any.
    """
    brokers = option or settings.brokers
    if brokers is None:
        raise ConfigurationError(
            "a topic requires --kafka HOST:PORT, or brokers under [kafka] in paimon-features.toml"
        )
    check_brokers("--kafka", brokers)
    return brokers


def start_position(text: str | None) -> str | int:
    """Return where a first run begins: a word, or a time in UTC ms.

    >>> start_position(None), start_position("latest"), start_position("2011-12-09T12:50:00")
    ('committed', 'latest', 1323435000000)

    Raises
    ------
    ConfigurationError
        For anything else.
    """
    if text is None:
        return "committed"
    if text in ("earliest", "latest", "committed"):
        return text
    try:
        return time_ms(text)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"--start: expected earliest, latest, committed, or a time ({error})"
        ) from None


class _LastProgress:
    """Shows each report, and keeps the last one."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self.last: IngestProgress | None = None

    def __call__(self, progress: IngestProgress) -> None:
        self.last = progress
        self.line(progress)


def _print_stopped(last: IngestProgress | None, as_json: bool) -> None:
    if as_json:
        document = {} if last is None else last.to_document()
        click.echo(json.dumps({"state": "stopped", **document}))
    else:
        click.echo(STOPPED, err=True)
