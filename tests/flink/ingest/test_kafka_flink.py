"""Topics of a real broker, read by Flink into the events table: every message exactly once."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.kafka_settings import PASSWORD_VARIABLE, KafkaSettings
from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.core.types.schema import Bool, Int64, String
from paimon_features.definitions import EventSource
from paimon_features.ingest.flink.kafka_sql import DEBEZIUM, KafkaTopic, kafka_scan, topic_columns
from paimon_features.ingest.flink.topic import checkpoint_folder, ingest_kafka
from paimon_features.ingest.ingest_progress import IngestProgress
from paimon_features.lake import Lake, read_arrow
from tests.flink.ingest.click_source import CLICKS, new_lake
from tests.kafka_topics import OTHER_PASSWORD, OTHER_USER, PASSWORD, USER, Message, Topic
from tests.servers.kafka_server import KafkaServer

pytestmark = [pytest.mark.flink, pytest.mark.kafka]

DEADLINE_S = 120


def click(number: int) -> bytes:
    return json.dumps({"id": number, "page": f"p{number % 7}", "at_ms": 1_000 * number}).encode()


@dataclass
class Ingestion:
    """Runs of one topic into one source."""

    folder: Path
    source: EventSource
    topic: Topic
    mapping: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: KafkaSettings | None = None
    servers: str | None = None

    def __post_init__(self) -> None:
        self.lake: Lake = new_lake(self.folder, self.source)
        self.reports: list[IngestProgress] = []

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_arrow(self.lake, self.source.table).to_pylist()
        return found

    def rejects(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_arrow(self.lake, self.source.rejected_table).to_pylist()
        return found

    def run_until(self, total: int) -> None:
        """Run the job until so many rows are in both tables, then Ctrl-C."""
        self.run_while(lambda: len(self.rows()) + len(self.rejects()) < total)

    def run_while(self, incomplete: Callable[[], bool], **options: bool) -> None:
        """Run the job until it is complete, then Ctrl-C."""
        deadline = time.monotonic() + DEADLINE_S

        def report(progress: IngestProgress) -> None:
            self.reports.append(progress)
            assert time.monotonic() < deadline, (progress, len(self.rows()), len(self.rejects()))
            if not incomplete():
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            self.run(report, **options)

    def ids(self) -> set[int]:
        return {row["id"] for row in self.rows()}

    def run(
        self,
        report: Callable[[IngestProgress], None] | None = None,
        restart: bool = False,
        accept_loss: bool = False,
    ) -> None:
        form = str(self.options.get("format", "json"))
        columns = topic_columns(self.source, self.mapping, form)
        servers = self.servers or self.topic.broker.address
        topic = KafkaTopic(servers, self.topic.name, self.topic.name, columns, **self.options)
        ingest_kafka(
            self.lake,
            self.source,
            topic,
            state_dir=self.folder / "state",
            checkpoint_interval_ms=200,
            progress=report,
            restart=restart,
            settings=self.settings,
            accept_loss=accept_loss,
        )


def test_each_message_is_an_event_or_a_rejected_row_with_a_reason(
    kafka_broker: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka_broker, 2, {"cleanup.policy": "compact"})
    framed = b"\x00" + struct.pack(">I", 0x80FF0102)
    long = b'{"id": 7, "page": "' + "\u20ac".encode() * 100_000 + b'", "at_ms": 1}'
    bad = {
        b"no json": "unreadable",
        None: "unreadable",
        b"": "unreadable",
        b"\xff\xfe\x00": "unreadable",
        b"[1]": "unreadable",
        framed + b"\x02avro": "unreadable",
        framed + b'{"id": 1, "page": "\xff", "at_ms": 1}': "unreadable",
        click(1) + click(2): "unreadable",
        b'{"id": "seven", "page": "p", "at_ms": 1}': "wrong_type",
        b'{"id": 7, "page": "p"}': "missing_time",
        long: "line_too_long",
    }
    good = [click(n) for n in range(50)] + [framed + click(n) for n in range(50, 60)]
    # keys of their own: compaction may otherwise remove them before they are read
    topic.send(Message(value, f"k{i}".encode()) for i, value in enumerate([*bad, *good]))
    run = Ingestion(tmp_path, CLICKS, topic, options={"max_bytes": 200_000})
    total = len(bad) + len(good)

    def unseen() -> bool:
        # Flink's metrics are behind what is committed
        shown = (run.reports[-1].rows_read, run.reports[-1].lag)
        return len(run.rows()) + len(run.rejects()) < total or shown != (total, 0)

    run.run_while(unseen)
    assert sorted(row["id"] for row in run.rows()) == list(range(60))
    rejects = run.rejects()
    assert Counter(row["reason"] for row in rejects) == Counter(bad.values())
    assert all(row["origin"].startswith(f"kafka:{topic.name}/") for row in rejects)
    details = {row["reason"]: row for row in rejects}
    assert f"has {len(long)} bytes" in details["line_too_long"]["detail"]
    assert len(details["line_too_long"]["raw"]) < 1_100
    assert "the message has no value" in [row["detail"] for row in rejects]
    assert "  0 behind" in str(run.reports[-1])


def test_a_stream_resumes_exactly_once_and_finds_partitions_that_are_added(
    kafka_broker: KafkaServer, tmp_path: Path
) -> None:
    #  messages     0..99 | 100..199 in a new partition | 200..299 | 300 ..
    #  job      start -----------------------------Ctrl-C    start --|  start without checkpoints
    topic = Topic(kafka_broker)
    run = Ingestion(tmp_path, CLICKS, topic, options={"discovery_ms": 200})
    topic.send(map(click, range(100)))
    deadline = time.monotonic() + DEADLINE_S
    added = False

    def report(progress: IngestProgress) -> None:
        nonlocal added
        assert time.monotonic() < deadline, (progress, len(run.rows()))
        if run.rows() and not added:
            added = True
            topic.add_partitions(2)
            topic.send(Message(click(n), partition=1) for n in range(100, 200))
        if len(run.rows()) > 100:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.run(report)
    topic.send(map(click, range(200, 300)))
    run.run_until(300)
    assert sorted(row["id"] for row in run.rows()) == list(range(300))

    shutil.rmtree(checkpoint_folder(tmp_path / "state", CLICKS, topic.name))
    with pytest.raises(JobError, match="contains checkpoint .* is none.*--restart"):
        run.run()
    # checkpoints have committed the group's offsets; what was read after the last may repeat
    # of transactions, only those that were committed are events
    topic.send_transaction([click(999)], commit=False)
    topic.send_transaction([click(300)], commit=True)

    def uncommitted() -> bool:
        # the client writes the group's offsets, for others to see, when messages arrive
        topic.send([Message(b"no json", partition=1)])
        return 300 not in run.ids() or topic.committed(topic.name, 1) < 100

    run.run_while(uncommitted, restart=True)
    assert run.ids() == set(range(301))

    # a long outage: of the next messages, retention deletes the first
    topic.send(Message(click(n), partition=1) for n in range(301, 311))
    topic.delete_before(1, topic.end(1) - 5)
    with pytest.raises(JobError, match="were deleted .*partition 1, offsets .*--accept-loss"):
        run.run()
    run.run_while(lambda: 310 not in run.ids(), accept_loss=True)
    assert run.ids() == {*range(301), *range(306, 311)}


def test_what_happens_to_group_and_topic_while_a_stream_is_stopped_is_noticed(
    kafka_broker: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka_broker)
    run = Ingestion(tmp_path, CLICKS, topic)
    topic.send(map(click, range(20)))
    run.run_until(20)

    # the broker deletes the offsets of a group without members, at the age of the messages
    topic.send(map(click, range(20, 40)))
    topic.delete_before(0, 30)
    topic.delete_group(topic.name)
    with pytest.raises(JobError, match="were deleted .*partition 0, offsets 20 to 29"):
        run.run()
    run.run_while(lambda: 39 not in run.ids(), accept_loss=True)
    assert run.ids() == {*range(20), *range(30, 40)}

    # offsets of the topic of before are none of this one, also where they exist in it
    topic.delete()
    again = Topic(kafka_broker, name=topic.name)
    again.send(map(click, range(100, 160)))
    with pytest.raises(JobError, match="was deleted and created again since the last run"):
        run.run()
    run.options = {"start": "earliest"}
    run.run_while(lambda: 159 not in run.ids(), restart=True)
    assert sorted(run.ids()) == [*range(20), *range(30, 40), *range(100, 160)]


@pytest.mark.long
@pytest.mark.parametrize("start", ["latest", 2_000_000])
def test_a_first_run_begins_where_it_is_told(
    kafka_broker: KafkaServer, tmp_path: Path, start: str | int
) -> None:
    topic = Topic(kafka_broker)
    topic.send(Message(click(n), timestamp_ms=1_000_000 * (n // 10 + 1)) for n in range(30))
    run = Ingestion(tmp_path, CLICKS, topic, options={"start": start})
    sent = 30

    def report(progress: IngestProgress) -> None:
        nonlocal sent
        # a run from the end sees messages that are sent after its start
        topic.send([click(sent)])
        sent += 1
        assert sent < 30 + DEADLINE_S, progress
        if run.rows():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.run(report)
    found = sorted(row["id"] for row in run.rows())
    assert found == list(range(found[0], found[-1] + 1))
    assert found[0] >= 30 if start == "latest" else found[0] == 10, found


SIGNED = EventSource(
    "signed",
    schema={"user": String, "trace": String, "part": Int64, "offset": Int64, "n": Int64,
            "at_ms": Int64},
    event_time="at_ms",
)  # fmt: skip
OF_MESSAGE = {
    "user": "kafka:key",
    "trace": "kafka:header:trace-id",
    "part": "kafka:partition",
    "offset": "kafka:offset",
    "at_ms": "kafka:timestamp",
}


@pytest.fixture
def secure(kafka_broker: KafkaServer) -> dict[str, Any]:
    """``[kafka]`` of a login by SCRAM, over TLS on both sides."""
    assert kafka_broker.secure is not None
    folder = kafka_broker.secure.certificate.parent
    return {
        "tls": True,
        "tls_ca": str(folder / "ca.pem"),
        "tls_cert": str(folder / "ca.pem"),
        "tls_key": str(folder / "client.key"),
        "user": USER,
    }


@pytest.mark.long
def test_columns_from_the_message_over_tls_with_a_login_whose_password_is_not_shown(
    kafka_broker: KafkaServer, tmp_path: Path, secure: dict[str, Any]
) -> None:
    topic = Topic(kafka_broker, 2)
    topic.send(
        Message(
            json.dumps({"n": n}).encode(),
            key=None if n == 3 else f"ü{n}".encode(),
            headers=() if n == 4 else (("trace-id", b"t%d" % n), ("other", b"\xff")),
            timestamp_ms=1_000 + n,
            partition=n % 2,
        )
        for n in range(6)
    )
    (tmp_path / "password").write_text(PASSWORD + "\n", "utf-8")
    settings = KafkaSettings.of({**secure, "password_file": "password"}, tmp_path, {})
    run = Ingestion(tmp_path, SIGNED, topic, OF_MESSAGE, {}, settings, kafka_broker.secure_address)
    secrets = tmp_path / "state/kafka/signed"

    def report(progress: IngestProgress) -> None:
        assert secrets.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
        if len(run.rows()) == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.run(report)
    found = sorted(run.rows(), key=lambda row: row["n"])
    assert [tuple(row[name] for name in SIGNED.schema) for row in found] == [
        (None if n == 3 else f"ü{n}", None if n == 4 else f"t{n}", n % 2, n // 2, n, 1_000 + n)
        for n in range(6)
    ]
    assert not secrets.exists()
    state = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert state
    hidden = ("back$slashed", "half \\")
    for path in state:
        assert not any(text.encode() in path.read_bytes() for text in hidden), path


def test_a_refused_login_and_a_missing_topic_end_with_an_error_that_shows_no_password(
    kafka_broker: KafkaServer, tmp_path: Path, secure: dict[str, Any]
) -> None:
    topic = Topic(kafka_broker)
    wrong = {PASSWORD_VARIABLE: "not-the-password"}
    values = {**secure, "user": OTHER_USER, "mechanism": "PLAIN"}
    settings = KafkaSettings.of(values, tmp_path, wrong)
    run = Ingestion(tmp_path, CLICKS, topic, settings=settings)
    run.servers = kafka_broker.secure_address
    with pytest.raises(JobError, match="Authentication failed.*connecting to the bro") as caught:
        run.run()
    text = "".join(traceback.format_exception(caught.value))
    assert "not-the-password" not in text
    assert not (tmp_path / "state/kafka/clicks").exists()
    run.settings = KafkaSettings.of(values, tmp_path, {PASSWORD_VARIABLE: OTHER_PASSWORD})
    run.topic = replace_name(topic, "missing")
    with pytest.raises(JobError, match=f"unknown topic 'missing'.*available: .*{topic.name}"):
        run.run()


def replace_name(topic: Topic, name: str) -> Topic:
    other = copy.copy(topic)
    other.name = name
    return other


ORDERS = EventSource(
    "orders",
    schema={"op": String, "id": Int64, "amount": String, "at_ms": Int64},
    event_time="at_ms",
    retraction="op",
)


def envelope(op: str, before: object, after: object, wrapped: bool = False) -> bytes:
    body = {"before": before, "after": after, "source": {"table": "orders"}, "op": op, "ts_ms": 1}
    return json.dumps({"schema": {"type": "struct"}, "payload": body} if wrapped else body).encode()


def order(number: int, amount: object, at_ms: object = 7) -> dict[str, object]:
    return {"id": number, "amount": amount, "at_ms": at_ms, "more": {"a": [1]}}


def test_envelopes_of_debezium_are_retractions_and_new_rows(
    kafka_broker: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka_broker)
    topic.send(
        [
            envelope("r", None, order(1, "1.10")),
            envelope("c", None, order(2, 2.50), wrapped=True),
            envelope("u", order(1, "1.10"), order(1, 12345678901234567890.25, 8), wrapped=True),
            envelope("u", order(2, 2.50), order(2, "3")),
            envelope("d", order(2, "3"), None),
            Message(None, b"2"),  # what follows a deletion
            envelope("u", None, order(5, "5")),  # the old row was not logged
            envelope("t", None, None),
            b'{"id": 1}',
            b"no json",
            envelope("u", order(6, "6"), order(6, "6", "soon")),
        ]
    )
    run = Ingestion(tmp_path, ORDERS, topic, options={"format": DEBEZIUM})
    run.run_until(13)
    expected = [
        ("+I", 1, "1.10", 7), ("+I", 2, "2.5", 7),
        ("-U", 1, "1.10", 7), ("+U", 1, "1.2345678901234567E+19", 8),
        ("-U", 2, "2.5", 7), ("+U", 2, "3", 7), ("-D", 2, "3", 7),
        ("+U", 5, "5", 7), ("-U", 6, "6", 7),
    ]  # fmt: skip
    found = Counter(tuple(row[name] for name in ORDERS.schema) for row in run.rows())
    assert found == Counter(expected)
    details = sorted(f"{row['reason']}: {row['detail']}" for row in run.rejects())
    assert len(details) == 4 + 1
    assert details[-1].startswith("wrong_type: column at_ms")
    assert sum("REPLICA IDENTITY FULL" in text for text in details) == 1
    assert sum("with op c, r, u or d, got op" in text for text in details) == 2
    assert sum(text.endswith("not one JSON object") for text in details) == 1


def test_a_flag_of_retractions_is_set_from_the_operation() -> None:
    flagged = replace(ORDERS, schema={**ORDERS.schema, "op": Bool})
    for source, kind in ((flagged, "THEN 'true' ELSE 'false' END AS `kind`"), (ORDERS, "`change`")):
        columns = topic_columns(source, {}, DEBEZIUM)
        scan = kafka_scan("in_0", KafkaTopic("a:1", "t", "g", columns, DEBEZIUM))
        assert kind in dict(scan.views)["in_0_changes"]


def test_debezium_needs_a_retraction_column_and_parts_of_messages_are_named() -> None:
    with pytest.raises(ConfigurationError, match="'clicks' has no retraction column"):
        topic_columns(CLICKS, {}, DEBEZIUM)
    with pytest.raises(ConfigurationError, match="filled from the kind of each change"):
        topic_columns(ORDERS, {"op": "operation"}, DEBEZIUM)
    for part in ("kafka:value", "kafka:header:", "kafka:", "kafka:change"):
        with pytest.raises(ConfigurationError, match="expected one of: kafka:key, kafka:timestamp"):
            topic_columns(CLICKS, {"page": part})
