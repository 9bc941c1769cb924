"""``publish``: fresh features into a Kafka topic, once or continuously."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, POLL, PROJECT
from paimon_features.cli._shared_options import changes_data
from paimon_features.cli._signals import stop_event
from paimon_features.project import Project


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@click.option("--topic", required=True, help="The topic; it has to exist.")
@click.option("--kafka", metavar="HOST:PORT,...", help="Default: brokers under [kafka].")
@click.option("--follow/--once", default=False, help="Keep running; default: once.")
@click.option("--again", is_flag=True, help="First publish every entity once more.")
@POLL
@changes_data()
@PROJECT
@JSON
def publish(
    view: str,
    topic: str,
    kafka: str | None,
    follow: bool,
    again: bool,
    poll_ms: int,
    path: str,
    as_json: bool,
) -> None:
    """Publish the features of VIEW to a topic: a message for each entity whose tiles changed.

    For consumers that do not read the online store. The key is a JSON object of the entity keys,
    the value has entity, features, statuses, as_of_ms, and the table and snapshot that the values
    include; without a value, the entity has no features any more. Use a compacted topic: the last
    message of a key is the current one. The first run publishes every entity.

    Messages are delivered at least once: after a crash some are repeated, none is lost. Features
    are read from the online store, so 'paimon-features materialize VIEW --follow' has to run.
    Values also change as time passes, without a message: as_of_ms says when they were read.

    \b
    paimon-features publish spend --topic features.spend            # catch up once
    paimon-features publish spend --topic features.spend --follow   # until Ctrl-C
    paimon-features publish spend --topic features.spend --again    # every entity once more
    """
    from paimon_features.cli.ingest_topic import brokers_of
    from paimon_features.core.configuration.kafka_settings import KafkaSettings
    from paimon_features.serving.publishing import FeaturePublisher, KafkaSink, PublishProgress

    project = Project.open(path)
    compiled = project.view(view)
    compiled.check_online()
    settings = KafkaSettings.of(project.config.kafka, project.root)
    fetcher, refs = project.online.fetcher(view), project.refs(view)

    def show(progress: PublishProgress) -> None:
        click.echo(json.dumps(asdict(progress)) if as_json else str(progress))

    with KafkaSink(settings, brokers_of(kafka, settings), topic) as sink:
        publisher = FeaturePublisher(
            project.lake,
            project.name,
            compiled,
            lambda: project.filled_generation(compiled),
            project.store,
            lambda entities, as_of_ms: fetcher.get(refs, entities, as_of_ms),
            sink,
            name=topic,
            identity=sink.identity(),
        )
        if again:
            publisher.forget_position()
        if follow:
            click.echo(f"following {view}; Ctrl-C ends it", err=True)
            publisher.follow(poll_ms, stop_event(), show)
        else:
            show(publisher.run_once())
