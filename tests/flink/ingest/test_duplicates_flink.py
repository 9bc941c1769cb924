"""Duplicates on Flink: one event per id within the horizon, others rejected, despite crashes."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.core.types.schema import Bool, Int64, String
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import EventSource
from paimon_features.ingest import file_ingestion as module
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.ingest.flink import job as flink_job
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import ingest_kafka
from paimon_features.ingest.ingest_progress import IngestProgress
from paimon_features.lake import Lake, read_arrow
from tests.flink.ingest.click_source import new_lake
from tests.kafka_topics import Topic
from tests.servers.kafka_server import KafkaServer

pytestmark = pytest.mark.flink

ORDERS = EventSource(
    "orders",
    schema={"order_id": String, "n": Int64, "gone": Bool, "at_ms": Int64},
    event_time="at_ms",
    retraction="gone",
    event_id="order_id",
    dedup_horizon="1h",
)
NOW_MS = 1_700_000_000_000


SOON = 1_000_000
"""Rows with these numbers have times an hour after ``NOW_MS``, all others long before."""


def lines(*rows: tuple[str | None, int, bool | None]) -> str:
    """JSON lines of (id, number, retracted)."""
    soon_ms = NOW_MS + HOUR_MS + ORDERS.max_skew_ms
    made = [
        {"order_id": i, "n": n, "gone": gone, "at_ms": soon_ms if n >= SOON else 0}
        for i, n, gone in rows
    ]
    return "".join(json.dumps(row) + "\n" for row in made)


def kept(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, ORDERS.table, ["n"]).column("n").to_pylist())


def aside(lake: Lake) -> Counter[tuple[str, int]]:
    rows = read_arrow(lake, ORDERS.rejected_table).to_pylist()
    return Counter((row["reason"], int(json.loads(row["raw"])["n"])) for row in rows)


@pytest.mark.long
def test_duplicates_within_and_across_files_and_runs_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  clock   0                1 h - 1 ms        1 h
    #          a a' -a b        a again, d        f and a enter, another a, d again
    #          (f a)                              (they had future timestamps)
    lake = new_lake(tmp_path, ORDERS)

    def ingest(at_ms: int, name: str, *rows: tuple[str | None, int, bool | None]) -> IngestResult:
        monkeypatch.setattr(module, "now_ms", lambda: at_ms)
        (tmp_path / name).write_text(lines(*rows))
        return ingest_files(lake, ORDERS, [tmp_path / name], state_dir=tmp_path / "state")

    first = ingest(
        NOW_MS, "1.jsonl", ("a", 1, False), ("a", 2, False), ("a", 3, True), ("b", 4, False),
        (None, 5, False), ("c", 6, None), ("f", SOON, False), ("a", SOON + 1, False),
    )  # fmt: skip
    assert first.accepted == 3
    assert first.rejected == {
        "time_in_future": 2, "bad_retraction": 1, "duplicate": 1, "missing_event_id": 1
    }  # fmt: skip
    assert kept(lake) == [1, 3, 4]

    # interrupted after the commit of the events: the same rows are rejected again
    real = flink_job.IngestJob.run

    def only_events(job: flink_job.IngestJob, *args: object, **options: object) -> str:
        real(job, *args[:3], (True, False))  # type: ignore[arg-type]
        raise OSError("killed")

    monkeypatch.setattr(flink_job.IngestJob, "run", only_events)
    late = NOW_MS + HOUR_MS - 1
    with pytest.raises(OSError, match="killed"):
        ingest(late, "2.jsonl", ("a", 7, False), ("d", 9, False), ("d", 8, False))
    monkeypatch.setattr(flink_job.IngestJob, "run", real)
    third = ingest(NOW_MS + HOUR_MS, "3.jsonl", ("a", 10, False), ("d", 11, False), ("a", 12, True))
    assert third.finished_run is not None
    # held events were released first: one was new, the other's id occurred an hour ago
    assert third.released == 2
    assert kept(lake) == [1, 3, 4, 8, 12, SOON, SOON + 1]
    assert aside(lake) == {
        ("time_in_future", SOON): 1, ("released", SOON): 1, ("duplicate", 10): 1,
        ("time_in_future", SOON + 1): 1, ("released", SOON + 1): 1,
        ("duplicate", 2): 1, ("missing_event_id", 5): 1, ("bad_retraction", 6): 1,
        ("duplicate", 7): 1, ("duplicate", 9): 1, ("duplicate", 11): 1,
    }  # fmt: skip


def send(topic: Topic, *rows: tuple[str | None, int, bool | None]) -> None:
    topic.send(lines(*rows).encode().splitlines())


def follow(
    lake: Lake, source: EventSource, topic: Topic, folder: Path, done: Callable[[], bool]
) -> None:
    """Run the stream until ``done``, then Ctrl-C."""
    deadline = time.monotonic() + 60

    def report(progress: IngestProgress) -> None:
        assert time.monotonic() < deadline, progress
        if done():
            signal.raise_signal(signal.SIGINT)

    columns = topic_columns(source, {})
    with pytest.raises(KeyboardInterrupt):
        ingest_kafka(
            lake,
            source,
            KafkaTopic(topic.broker.address, topic.name, "g", columns),
            state_dir=folder / "state",
            checkpoint_interval_ms=200,
            progress=report,
        )


@pytest.mark.long
@pytest.mark.kafka
def test_a_stream_keeps_ids_across_restarts_until_the_horizon(
    tmp_path: Path, kafka_broker: KafkaServer
) -> None:
    lake, topic = new_lake(tmp_path, ORDERS), Topic(kafka_broker, 2)
    rows = [(f"id{n % 400}", n, n % 3 == 0) for n in range(1000)]
    distinct = len({(i, gone) for i, _, gone in rows})
    send(topic, *rows)
    follow(lake, ORDERS, topic, tmp_path, lambda: len(kept(lake)) > 0)  # after any checkpoint
    again = [(i, n + 1000, gone) for i, n, gone in rows]
    send(topic, *again, ("new", 5000, False))
    total = len(rows) + len(again) + 1
    follow(
        lake,
        ORDERS,
        topic,
        tmp_path,
        lambda: sum(aside(lake).values()) + len(kept(lake)) == total,
    )
    numbers = kept(lake)
    assert len(numbers) == distinct + 1
    assert {reason for reason, _ in aside(lake)} == {"duplicate"}
    everything = sorted([*numbers, *(n for _, n in aside(lake))])
    assert everything == [*range(2000), 5000]

    # the same stream with a tiny horizon: ids not seen within it are new
    hasty = replace(ORDERS, dedup_horizon="1s")
    time.sleep(1.1)
    send(topic, ("id0", 6000, True))
    follow(lake, hasty, topic, tmp_path, lambda: len(kept(lake)) == distinct + 2)
    assert kept(lake)[-1] == 6000
