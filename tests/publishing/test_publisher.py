"""Fresh features in a topic: every changed entity, at least once, equal to the oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.definitions import FeatureRef
from paimon_features.errors import PublishError, StoreNotReadyError
from paimon_features.kafka_settings import KafkaSettings
from paimon_features.online import OnlineStore, open_store
from paimon_features.oracle.features import answer
from paimon_features.publishing import FeatureMessage, FeaturePublisher, KafkaSink, Sink, publisher
from paimon_features.serving.fetcher import FeatureFetcher
from paimon_features.setup.kafka_server import KafkaServer
from paimon_features.tables.consumers import consumers
from paimon_features.testing.clicks import START_MS, USERS, ClickStream, clicks_view
from paimon_features.testing.tile_lake import PROJECT, TileLake
from paimon_features.windows import DAY_MS
from tests.kafka_topics import OTHER_PASSWORD, OTHER_USER, Topic
from tests.shop_projects import make_project

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture
def lake(tmp_path: Path) -> TileLake:
    return TileLake(tmp_path / "lake", clicks_view(lifetime=False))


@pytest.fixture
def stream(lake: TileLake) -> ClickStream:
    return ClickStream(lake, random.randrange(10**6))


@pytest.fixture
def store(redis_url: str) -> Iterator[OnlineStore]:
    opened = open_store(redis_url)
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

    def make(sink: Sink, later_ms: int = 0) -> FeaturePublisher:
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
        assert publishing(sink).run_once().messages == len(current(topic)) == USERS
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
    assert {user for user in after if after[user] != before[user]} == changed
    assert {message["snapshot"] for user in changed if (message := after[user])} == {last}

    # without features an entity is a message without a value, which compaction removes
    with sink_of(topic) as sink:
        later = publishing(sink, later_ms=100 * DAY_MS)
        later.forget_position()
        assert later.run_once().messages == USERS
    assert set(current(topic).values()) == {None}


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
    from paimon_features.testing.tile_jobs import append_events

    project = make_project(
        tmp_path, FEATURES, f'[project]\nname = "shop"\n[online]\nurl = "{redis_url}"\n'
    )
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
    assert "--topic requires --kafka HOST:PORT" in done.stderr
