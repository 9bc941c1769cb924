"""A watched folder instead of a Kafka topic: everything except the scan is as with Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from paimon_features.definitions import EventSource
from paimon_features.flink.sql.input_columns import KafkaTopic
from paimon_features.flink.sql.scans import InputScan, json_views
from paimon_features.schema import Int64, String
from paimon_features.tables import Lake
from paimon_features.tables.specs import events_spec, rejected_spec

CLICKS = EventSource(
    "clicks", schema={"id": Int64, "page": String, "at_ms": Int64}, event_time="at_ms"
)


def new_lake(folder: Path, source: EventSource = CLICKS) -> Lake:
    """A lake in a folder, with the tables of a source."""
    lake = Lake.open(str(folder / "lake"), "features")
    lake.create(events_spec(source.table, source.schema))
    lake.create(rejected_spec(source.rejected_table))
    return lake


def clicks(first: int, count: int) -> str:
    """JSON lines with these ids, and an invalid line after every tenth."""
    lines = []
    for number in range(first, first + count):
        lines.append(json.dumps({"id": number, "page": f"p{number % 7}", "at_ms": 1_000 * number}))
        if number % 10 == 0:
            lines.append(f"broken {number}")
    return "\n".join(lines) + "\n"


def watched_folder(inbox: Path) -> Callable[[str, KafkaTopic], InputScan]:
    """Replaces ``kafka_scan``: the lines of files as they are added to ``inbox``.

    Flink keeps in its checkpoints which of them were read, and how far, as it does with offsets.
    """
    inbox.mkdir()

    def scan(name: str, topic: KafkaTopic) -> InputScan:
        table = (
            f"CREATE TEMPORARY TABLE `{name}` (`line` STRING, `origin` STRING NOT NULL METADATA "
            f"FROM 'file.path') WITH ('connector' = 'filesystem', 'path' = 'file://{inbox}', "
            "'format' = 'raw', 'source.monitor-interval' = '100 ms')"
        )
        return InputScan(table, json_views(name, topic.columns))

    return scan
