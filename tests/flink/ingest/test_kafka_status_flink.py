"""``status`` of a stream whose broker is killed under its running job."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from paimon_features.flink.stream_jobs import StreamJob, list_stream_jobs
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import ingest_kafka
from paimon_features.ingest.ingest_progress import IngestProgress
from tests.flink.ingest.click_source import CLICKS, new_lake
from tests.kafka_topics import Message, Topic
from tests.servers.kafka_server import KafkaServer

pytestmark = [pytest.mark.flink, pytest.mark.kafka]

DEADLINE_S = 120


def test_a_job_that_loses_its_broker_needs_attention(tmp_path: Path) -> None:
    lake, state = new_lake(tmp_path, CLICKS), tmp_path / "state"
    seen: dict[str, StreamJob] = {}
    with KafkaServer() as broker:
        topic = Topic(broker, 1)
        topic.send([Message(b'{"id": 1, "page": "p", "at_ms": 1000}', b"k")])
        deadline = time.monotonic() + DEADLINE_S

        def report(progress: IngestProgress) -> None:
            assert time.monotonic() < deadline, seen
            (job,) = list_stream_jobs(lake, state)
            if "connected" not in seen:
                if job.committed_ms and job.connected and job.lag == 0:
                    seen["connected"] = job
                    broker.kill()
            elif job.connected is False:
                seen["alone"] = job
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            ingest_kafka(
                lake,
                CLICKS,
                KafkaTopic(
                    broker.address, topic.name, topic.name, topic_columns(CLICKS, {}, "json")
                ),
                state_dir=state,
                checkpoint_interval_ms=200,
                progress=report,
            )
    connected, alone = seen["connected"], seen["alone"]
    assert (connected.kind, connected.state, connected.where) == ("ingest", "RUNNING", "local")
    assert connected.writes == (CLICKS.table, CLICKS.rejected_table)
    assert connected.attention(int(time.time() * 1_000)) is None
    assert (alone.state, alone.lag) == ("RUNNING", None)
    assert "receives nothing from its brokers" in str(alone.attention(int(time.time() * 1_000)))
    (ended,) = list_stream_jobs(lake, state)
    assert (ended.state, ended.attention(int(time.time() * 1_000))) == ("STOPPED", None)
