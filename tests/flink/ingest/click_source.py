"""A source of clicks, its tables and its events."""

from __future__ import annotations

import json
from pathlib import Path

from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import EventSource
from paimon_features.lake import Lake
from paimon_features.lake.specs import events_spec, rejected_spec

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
