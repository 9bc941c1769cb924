"""Ingestion: files (each once, all in one commit), a Kafka topic, or the change log of a table.

Flink runs this file::

    flink run -m jobmanager:8081 -py jobs/ingest.py --project /project --source retail FILE ...
    flink run -m jobmanager:8081 -py jobs/ingest.py --project /project --source clicks \\
        --kafka broker:9092 --topic clicks

``paimon-features ingest`` calls the same functions.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.flink.cluster import cluster_address
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.flink.kafka_sql import FORMATS, JSON, KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import ingest_change_log, ingest_kafka
from paimon_features.ingest.input_columns import parse_mapping
from paimon_features.ingest.local.sampling import choose_partitions
from paimon_features.ingest.long_lines import MAX_LINE_BYTES
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    p = argparse.ArgumentParser(prog="ingest.py", description="Ingest events into a source.")
    p.add_argument("paths", nargs="*", type=Path, help="Files or folders of files.")
    p.add_argument("--project", default=".", help="Folder of the project.")
    p.add_argument("--source", required=True, help="The event source.")
    p.add_argument("--column", action="append", default=[], help="COLUMN=NAME in the files.")
    p.add_argument("--again", action="store_true", help="Also files that were ingested before.")
    p.add_argument(
        "--max-line-bytes", type=int, default=MAX_LINE_BYTES, help="Longer lines are rejected."
    )
    p.add_argument("--kafka", help="HOST:PORT,... of the brokers; read --topic, not files.")
    p.add_argument("--format", choices=FORMATS, default=JSON, help="With --kafka: the messages.")
    p.add_argument("--start", default="committed", help="earliest, latest, committed, or UTC ms.")
    p.add_argument("--topic", help="With --kafka: the topic.")
    p.add_argument("--group", help="With --kafka: the consumer group.")
    p.add_argument("--restart", action="store_true", help="With --kafka: from --start.")
    p.add_argument("--accept-loss", action="store_true", help="With --kafka: though some are gone.")
    p.add_argument("--from-table", help="DATABASE.TABLE, whose change log is read, not files.")
    p.add_argument("--bounded", action="store_true", help="With --from-table: stop at its end.")
    p.add_argument("--cluster", help="HOST:PORT, where Flink does not run this program itself.")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Submit the job; a stream is left to the cluster, anything with an end is waited for."""
    args = parser().parse_args(argv)
    if sum((bool(args.paths), args.kafka is not None, args.from_table is not None)) != 1:
        parser().error("expected either files, or --kafka with --topic, or --from-table")
    project = Project.open(args.project)
    source, columns = project.definitions.source(args.source), parse_mapping(args.column)
    config = project.config
    where: dict[str, Any] = {
        "state_dir": config.state_dir,
        "parallelism": config.flink.parallelism,
        "cluster": cluster_address(config.state_dir, args.cluster),
    }
    stream = {**where, "job_state": job_state_folder(config.state_dir, config.flink)}
    interval = config.flink.checkpoint_interval_ms
    if args.kafka is not None:
        if args.topic is None:
            parser().error("--kafka needs --topic")
        settings = KafkaSettings.of(config.kafka, config.root)
        topic = KafkaTopic(
            args.kafka,
            args.topic,
            args.group or f"paimon-features-{source.name}",
            topic_columns(source, columns, args.format),
            args.format,
            int(args.start) if args.start.isdecimal() else args.start,
            max_bytes=args.max_line_bytes,
            discovery_ms=settings.discovery_ms,
        )
        job_id = ingest_kafka(
            project.lake,
            source,
            topic,
            restart=args.restart,
            settings=settings,
            accept_loss=args.accept_loss,
            checkpoint_interval_ms=interval,
            **stream,
        )
        print(json.dumps({"job_id": job_id}))
    elif args.from_table is not None:
        job_id = ingest_change_log(
            project.lake,
            source,
            args.from_table,
            columns,
            bounded=args.bounded,
            checkpoint_interval_ms=interval,
            **stream,
        )
        print(json.dumps({"job_id": job_id}))
    else:
        result = ingest_files(
            project.lake,
            source,
            args.paths,
            columns,
            again=args.again,
            max_line_bytes=args.max_line_bytes,
            choose_partitions=choose_partitions,
            **where,
        )
        print(json.dumps(result.to_document()))


if __name__ == "__main__":
    main()
