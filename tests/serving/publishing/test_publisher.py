"""Fresh features in a topic: every changed entity, at least once, equal to the oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.configuration.kafka_settings import PASSWORD_VARIABLE, KafkaSettings
from paimon_features.core.errors import ConfigurationError, PublishError, StoreNotReadyError
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import FeatureRef
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.online.store import OnlineStore
from paimon_features.project import Project
from paimon_features.project.first_steps import topic_sample
from paimon_features.serving.publishing import (
    FeatureMessage,
    FeaturePublisher,
    KafkaSink,
    Sink,
    kafka_sink,
    publisher,
)
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.features import answer
from tests.clicks import START_MS, ClickStream, clicks_view
from tests.kafka_topics import OTHER_PASSWORD, OTHER_USER, Message, Topic
from tests.patient_stores import PATIENT_TOML, patient_store
from tests.servers.kafka_server import KafkaServer
from tests.shop_projects import make_project
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture(autouse=True)
def patient_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is of how long a sink waits for brokers: paused ones are to answer in time."""
    monkeypatch.setattr(kafka_sink, "CONNECT_S", LONG_S)


@pytest.fixture
def patient_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for samples of a topic; brokers that answer are not waited for."""
    for name in ("CONNECT_S", "CLOSED_S", "QUIET_S"):
        monkeypatch.setattr(topic_sample, name, LONG_S)


@pytest.fixture
def lake(tmp_path: Path) -> TileLake:
    return TileLake(tmp_path / "lake", clicks_view(lifetime=False))


@pytest.fixture
def stream(lake: TileLake) -> ClickStream:
    return ClickStream(lake, random.randrange(10**6))


@pytest.fixture
def store(redis_url: str) -> Iterator[OnlineStore]:
    opened = patient_store(redis_url)
    yield opened
    opened.close()


@pytest.fixture
def topic(kafka_broker: KafkaServer) -> Topic:
    return Topic(kafka_broker, 2, {"cleanup.policy": "compact"})


@pytest.fixture
def publishing(
    lake: TileLake, stream: ClickStream, store: OnlineStore
) -> Callable[..., FeaturePublisher]:
    """Makes publishers of the view to a sink, at the time of the stream."""
    fetcher = FeatureFetcher(PROJECT, [lake.compiled], store)
    refs = [FeatureRef(lake.view.name, f.name) for f in lake.compiled.features]

    def make(sink: Sink, later_ms: int = 0, identity: str | None = None) -> FeaturePublisher:
        return FeaturePublisher(
            lake.lake,
            PROJECT,
            lake.compiled,
            lambda: lake.record,
            store,
            lambda entities, as_of_ms: fetcher.get(refs, entities, as_of_ms),
            sink,
            "features",
            clock=lambda: stream.now_ms + 1 + later_ms,
            identity=identity,
        )

    return make


def sink_of(topic: Topic) -> KafkaSink:
    return KafkaSink(KafkaSettings(), topic.broker.address, topic.name)


def current(topic: Topic) -> dict[int, dict[str, Any] | None]:
    """The last message of each user."""
    return {
        json.loads(key or b"")["user"]: None if value is None else json.loads(value)
        for key, value in topic.read()
    }


def assert_current(topic: Topic, lake: TileLake, stream: ClickStream) -> None:
    """The values of each user's last message are the oracle's at the time of the message."""
    found = current(topic)
    assert set(found) == {event["user"] for event in stream.events}
    for user, message in found.items():
        own = [event for event in stream.events if event["user"] == user]
        assert message is not None
        expected = answer(lake.view, own, message["as_of_ms"], online=True)
        assert message["features"] == expected.values
        assert set(message["statuses"].values()) == {expected.status}
        assert message["entity"] == {"user": user}


def test_the_first_run_publishes_every_entity_and_later_ones_those_that_changed(
    lake: TileLake, stream: ClickStream, store: OnlineStore, topic: Topic,
    publishing: Callable[..., FeaturePublisher],
) -> None:  # fmt: skip
    for _ in range(3):
        stream.commit(100)
    with sink_of(topic) as sink:
        with pytest.raises(StoreNotReadyError, match="materialize clicks"):
            publishing(sink).run_once()
        lake.materializer(store).run_once()
        users = len(
            {event["user"] for event in stream.events}
        )  # 300 events, hardly one of 40 has none
        assert publishing(sink).run_once().messages == len(current(topic)) == users
        assert_current(topic, lake, stream)
        before = current(topic)

        last = stream.commit(5)
        assert publishing(sink).run_once().messages == 0, "not in the online store yet"
        lake.materializer(store).run_once()
        done = publishing(sink).run_once()
        changed = {event["user"] for event in stream.events[-5:]}
        assert (done.messages, done.snapshot) == (len(changed), last)
        assert publishing(sink).run_once().messages == 0
    after = current(topic)
    assert {user for user in after if after[user] != before.get(user)} == changed
    assert {message["snapshot"] for user in changed if (message := after[user])} == {last}

    # without features an entity is a message without a value, which compaction removes
    with sink_of(topic) as sink:
        later = publishing(sink, later_ms=100 * DAY_MS)
        later.forget_position()
        assert later.run_once().messages == len(after)
    assert set(current(topic).values()) == {None}


def test_a_topic_that_was_created_again_receives_every_entity(
    lake: TileLake, stream: ClickStream, store: OnlineStore, topic: Topic,
    publishing: Callable[..., FeaturePublisher],
) -> None:  # fmt: skip
    stream.commit(100)
    lake.materializer(store).run_once()
    with sink_of(topic) as sink:
        publishing(sink).run_once()  # of an earlier release, which kept no identity
        known = publishing(sink, identity=sink.identity())
        assert known.run_once().messages == 0
    published = set(current(topic))
    topic.delete()
    again = Topic(topic.broker, 2, {"cleanup.policy": "compact"}, name=topic.name)
    with sink_of(again) as sink:
        other = publishing(sink, identity=sink.identity())
        assert other.run_once().messages == len(published)
        assert other.run_once().messages == 0
    assert set(current(again)) == published
    kept = [name for name in consumers(lake.lake, lake.record.table) if name.startswith("publish-")]
    assert kept == [other.consumer]


class Crash(BaseException):
    """A process that ends."""


class CrashingSink:
    """A sink that ends the process before or after some send."""

    def __init__(self, sink: Sink, crash_at: int, after: bool) -> None:
        self.sink, self.left, self.after = sink, crash_at, after

    def send(self, messages: Sequence[FeatureMessage]) -> None:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Crash
        self.sink.send(messages)
        if self.left < 0:
            raise Crash


@pytest.mark.long
def test_a_crash_repeats_messages_and_loses_none(
    lake: TileLake, stream: ClickStream, store: OnlineStore, topic: Topic,
    publishing: Callable[..., FeaturePublisher], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(publisher, "BATCH_ENTITIES", 7)
    monkeypatch.setattr(publisher, "MAX_SNAPSHOTS", 2)
    rng = random.Random(stream.rng.random())
    with sink_of(topic) as sink:
        for _ in range(12):
            for _ in range(rng.randrange(1, 4)):
                stream.commit(rng.randrange(1, 30))
            lake.materializer(store).run_once()
            crashing = CrashingSink(sink, rng.randrange(6), rng.random() < 0.5)
            try:
                publishing(crashing).run_once()
            except Crash:
                continue
        publishing(sink).run_once()
    assert_current(topic, lake, stream)
    positions = [c for c in consumers(lake.lake, lake.record.table) if c.startswith("publish-")]
    assert len(positions) == 1


def test_a_topic_that_its_brokers_do_not_know_yet_is_waited_for(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink, "NEW_TOPIC_S", LONG_S)
    monkeypatch.setattr(topic_sample, "NEW_TOPIC_S", LONG_S)
    at, name = kafka_broker.address, "created-later"
    with ThreadPoolExecutor(2) as pool:
        opening = pool.submit(KafkaSink, KafkaSettings(), at, name)
        sampling = pool.submit(topic_sample.sample_topic, KafkaSettings(), at, name, 1)
        done, _ = wait([opening, sampling], 0.2, FIRST_COMPLETED)
        assert not done
        topic = Topic(kafka_broker, name=name)
        with opening.result(LONG_S) as sink:
            with pytest.raises(ConfigurationError, match="no messages yet"):
                sampling.result(LONG_S)
            sink.send([FeatureMessage(b'{"user":1}', b"{}")])
    assert current(topic) == {1: {}}


def test_errors_say_where_and_why_and_show_no_password(
    kafka_broker: KafkaServer, topic: Topic
) -> None:
    with pytest.raises(PublishError, match=f"topic 'gone' of {kafka_broker.address}: .*create"):
        KafkaSink(KafkaSettings(), kafka_broker.address, "gone")
    assert kafka_broker.secure is not None
    folder = kafka_broker.secure.certificate.parent
    wrong = KafkaSettings(
        tls=True, tls_ca=folder / "ca.pem", tls_cert=folder / "ca.pem",
        tls_key=folder / "client.key", user=OTHER_USER, mechanism="PLAIN", password="not-it-at-all",
    )  # fmt: skip
    with pytest.raises(PublishError, match="[Aa]uthentication failed") as caught:
        KafkaSink(wrong, kafka_broker.secure_address, topic.name)
    assert "not-it-at-all" not in str(caught.value)
    right = KafkaSettings(
        tls=True, tls_ca=folder / "ca.pem", tls_cert=folder / "ca.pem",
        tls_key=folder / "client.key", user=OTHER_USER, mechanism="PLAIN", password=OTHER_PASSWORD,
    )  # fmt: skip
    with KafkaSink(right, kafka_broker.secure_address, topic.name) as sink:
        sink.send([FeatureMessage(b'{"user":1}', b"{}")])
    assert current(topic) == {1: {}}


FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "t": pf.Int64}, event_time="t")
count = pf.FeatureView("views", source=clicks, entity=pf.Entity("id", keys={"id": pf.Int64}),
                       features=[pf.Count(windows=["1d"])])
"""


def test_the_command_publishes_a_view_of_a_project(
    tmp_path: Path, topic: Topic, redis_url: str
) -> None:
    from tests.tile_jobs import append_events

    config = f'[project]\nname = "shop"\n[online]\nurl = "{redis_url}"\n{PATIENT_TOML}'
    project = make_project(tmp_path, FEATURES, config)
    view = project.definitions.view("views")
    import pyarrow as pa

    append_events(project.lake, view, pa.table({"id": [1, 2], "t": [START_MS, START_MS]}))

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, [*arguments, "--project", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.stdout

    run("backfill", "views", "--engine", "local")
    run("materialize", "views")
    options = ("views", "--topic", topic.name, "--kafka", topic.broker.address)
    assert json.loads(run("publish", *options, "--json")) == {
        "view": "views", "messages": 2, "snapshot": 1, "latest_snapshot": 1
    }  # fmt: skip
    assert run("publish", *options) == "views: 0 messages, up to snapshot 1\n"
    assert run("publish", *options, "--again") == "views: 2 messages, up to snapshot 1\n"
    assert sorted(key or b"" for key, _ in topic.read()) == [b'{"id":1}'] * 2 + [b'{"id":2}'] * 2
    done = CliRunner().invoke(cli, ["publish", "views", "--topic", "t", "--project", str(tmp_path)])
    assert done.exit_code == 2
    assert "a topic requires --kafka HOST:PORT" in done.stderr


def init(folder: Path, origin: str, *options: str) -> tuple[int, str, str]:
    answer = CliRunner().invoke(cli, ["init", str(folder), "--from", origin, *options])
    return answer.exit_code, answer.stdout, answer.stderr


@pytest.mark.usefixtures("patient_samples")
def test_a_project_is_proposed_from_the_messages_of_a_topic(
    kafka_broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, OTHER_PASSWORD)
    topic = Topic(kafka_broker, 2)
    objects = [{"user_id": n % 7, "amount": n / 2, "ts": 1_764_000_000 + n} for n in range(60)]
    # what a serializer of a schema registry puts before its JSON; what is no event
    header = b"\0\0\0\0\x01"
    topic.send([*(header[: 5 * (n % 2)] + json.dumps(o).encode() for n, o in enumerate(objects))])
    topic.send([b"oops", b"[1]", Message(None, b"key")])
    topic.send_transaction([b'{"user_id": "aborted"}'], commit=False)
    assert kafka_broker.secure is not None
    files = kafka_broker.secure.certificate.parent
    secure = (
        "tls=true",
        f"tls_ca={files}/ca.pem",
        f"tls_cert={files}/ca.pem",
        f"tls_key={files}/client.key",
        f"user={OTHER_USER}",
    )
    options = [word for entry in secure for word in ("--kafka", entry)]
    origin = f"kafka://{kafka_broker.secure_address}/{topic.name}"
    status, output, notes = init(tmp_path / "shop", origin, *options)
    assert status == 0, notes
    assert "read all 60 rows" in output
    assert "2 messages are not JSON objects" in notes
    assert "1 messages have no value" in notes
    # seconds are not what messages are read by: the time of the message is taken, and said
    assert f" {topic.name} --column ts=kafka:timestamp" in output
    assert OTHER_PASSWORD not in (tmp_path / "shop/paimon-features.toml").read_text()
    project = Project.open(tmp_path / "shop")
    (source,) = project.definitions.sources.values()
    assert {name: repr(kind) for name, kind in source.schema.items()} == {
        "amount": "Float64",
        "ts": "Int64",
        "user_id": "Int64",
    }
    assert [list(e.keys) for e in project.definitions.entities.values()] == [["user_id"]]
    assert project.config.kafka["user"] == OTHER_USER


@pytest.mark.long
def test_a_topic_from_which_nothing_can_be_proposed_is_an_error_with_a_remedy(
    kafka_broker: KafkaServer, tmp_path: Path
) -> None:
    topic, avro, changes, timeless = (Topic(kafka_broker) for _ in range(4))
    avro.send([b"\0\0\0\0\x01\x02\x06abc"])
    changes.send([b'{"before": null, "after": {"id": 1}, "op": "c"}'])
    timeless.send([b'{"name": "x"}'])
    at = f"kafka://{kafka_broker.address}"
    for origin, expected in (
        (f"{at}/{topic.name}", ["has no messages yet", "--from events.jsonl"]),
        (f"{at}/{topic.name[:-1]}", ["unknown topic", f"did you mean {topic.name!r}"]),
        (f"{at}/{avro.name}", ["none of 1 messages is a JSON object", "schema registry's Avro"]),
        (f"{at}/{changes.name}", ["Debezium", "--format debezium-json"]),
        (f"{at}/{timeless.name}", [f"{at}/{timeless.name}: no column has times"]),
        (f"kafka://127.0.0.1:{kafka_broker.secure_address[10:]}/x", ["PLAINTEXT", "tls=true"]),
    ):
        status, _, error = init(tmp_path / "new", origin)
        assert status == 2, origin
        assert all(part in error for part in expected), (origin, error)
        assert not (tmp_path / "new").exists()
