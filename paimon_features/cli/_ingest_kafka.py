"""``ingest --kafka``: a topic, in the foreground or detached on a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._options import time_ms
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.core.configuration.kafka_settings import KafkaSettings, check_brokers
from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.ingest.ingest_progress import IngestProgress, OnIngestProgress

STOPPED = "stopped; the same command resumes from its last checkpoint"


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options of ``ingest`` that name a topic and how it is read."""

    kafka: str | None
    topic: str | None
    group: str | None
    message_format: str | None
    start: str | None
    restart: bool
    accept_loss: bool

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        words = (self.kafka, self.topic, self.group, self.message_format, self.start)
        return self.restart or self.accept_loss or any(words)


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
            "--topic requires --kafka HOST:PORT, or brokers under [kafka] in paimon-features.toml"
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


class LastProgress:
    """Shows each report, and keeps the last one."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self.last: IngestProgress | None = None

    def __call__(self, progress: IngestProgress) -> None:
        self.last = progress
        self.line(progress)


def ingest_topic(
    project: Project,
    source: str,
    options: TopicOptions,
    columns: tuple[str, ...],
    max_bytes: int,
    cluster: str | None,
    as_json: bool,
) -> str | None:
    """Run the job. Returns its id if it continues on a cluster, None after Ctrl-C."""
    from paimon_features.ingest.flink.kafka_sql import JSON, KafkaTopic, topic_columns
    from paimon_features.ingest.flink.topic import ingest_kafka
    from paimon_features.ingest.input_columns import parse_mapping

    defined = project.definitions.source(source)
    settings = KafkaSettings.of(project.config.kafka, project.root)
    form = options.message_format or JSON
    topic = KafkaTopic(
        brokers_of(options.kafka, settings),
        options.topic or "",
        options.group or f"paimon-features-{source}",
        topic_columns(defined, parse_mapping(columns), form),
        form,
        start_position(options.start),
        max_bytes=max_bytes,
        discovery_ms=settings.discovery_ms,
    )
    with ProgressLine(as_json, events=as_json) as line:
        progress = LastProgress(line)
        try:
            return ingest_kafka(
                project.lake,
                defined,
                topic,
                restart=options.restart,
                accept_loss=options.accept_loss,
                settings=settings,
                **stream_options(project, cluster, progress),
            )
        except KeyboardInterrupt:
            pass
    _print_stopped(progress.last, as_json)
    return None


def stream_options(
    project: Project, cluster: str | None, progress: OnIngestProgress
) -> dict[str, Any]:
    """Return the arguments that every stream takes."""
    return {
        "state_dir": project.config.state_dir,
        "job_state": job_state_folder(project.config.state_dir, project.config.flink),
        "checkpoint_interval_ms": project.config.flink.checkpoint_interval_ms,
        "parallelism": project.config.flink.parallelism,
        "cluster": cluster,
        "progress": progress,
    }


def _print_stopped(last: IngestProgress | None, as_json: bool) -> None:
    if as_json:
        document = {} if last is None else last.to_document()
        click.echo(json.dumps({"state": "stopped", **document}))
    else:
        click.echo(STOPPED, err=True)


def print_status(project: Project, source: str, as_json: bool) -> None:
    """Show the job of a source that runs on a cluster: its state, rows read, lag.

    Raises
    ------
    UnknownNameError
        If none was submitted to a cluster.
    """
    from paimon_features.ingest.flink.topic import cluster_job_status

    status = cluster_job_status(project.lake, project.definitions.source(source))
    if as_json:
        click.echo(json.dumps(status.to_document()))
    else:
        click.echo(str(status))
