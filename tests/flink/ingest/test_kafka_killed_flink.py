"""From a topic to a lookup, with broker, job and materializer killed on the way: exact.

``PAIMON_FEATURES_KILLS`` is how often the job is killed: ``make chaos`` says a hundred times,
``make test`` leaves it out. A failing run prints its seed for ``PAIMON_FEATURES_SEED``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paimon_features.core.process.waiting import wait_until
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import ingest_kafka
from paimon_features.ingest.ingest_progress import IngestProgress
from paimon_features.lake import read_arrow, snapshots
from paimon_features.project import Project
from paimon_features.testing.reference.features import answer
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.kafka_topics import Message, Topic
from tests.servers.kafka_server import KafkaServer
from tests.waiting import LONG_S, await_true

pytestmark = [pytest.mark.flink, pytest.mark.kafka, pytest.mark.redis]

KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "0"))
SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
USERS = 20
NOW_MS = 1_600_000_000_000
MAIN = "from paimon_features.cli import main; main()"

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource(
    "clicks",
    schema={"n": pf.Int64, "user": pf.Int64, "price": pf.Int64, "at_ms": pf.Int64},
    event_time="at_ms",
)
spend = pf.FeatureView(
    "spend",
    source=clicks,
    entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[pf.Count(windows=["1h", None]), pf.Sum("price", windows=["1d"])],
)
"""


class Producer:
    """Sends numbered events and poisoned messages, from a thread while others are killed."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic, self.rng = topic, random.Random(seed)
        self.events: list[dict[str, int]] = []
        self.poisoned = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            if self.rng.random() < 0.1:
                self.poisoned += 1
                self.topic.send([self.rng.choice([b"poison", Message(None)])], flush=False)
                continue
            at_ms = NOW_MS - self.rng.randrange(0, 7_200_000, 1_000)
            user, price = self.rng.randrange(USERS), self.rng.randrange(100)
            row = {"n": len(self.events), "user": user, "price": price, "at_ms": at_ms}
            self.events.append(row)
            self.topic.send([json.dumps(row).encode()], flush=False)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send continuously."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(self.rng.uniform(0.01, 0.05)):
                self.send(self.rng.randrange(1, 20))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def shop(tmp_path: Path, kafka_broker: KafkaServer, redis_url: str) -> Project:
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "paimon-features.toml").write_text(
        f'[project]\nname = "shop"\n[flink]\ncheckpoint_interval = "300ms"\n'
        f'[kafka]\nbrokers = "{kafka_broker.address}"\n[online]\nurl = "{redis_url}"\n'
    )
    project = Project.open(tmp_path)
    project.apply()
    return project


def command(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments, "--project", project.config.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def await_while_running(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    await_true(lambda: condition() or running.poll() is not None)
    assert condition(), running.communicate()[0]


def kill(process: subprocess.Popen[str], what: str) -> None:
    """Kill a client, its JVM, or both, and wait until both have ended."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if what != "jvm":
        process.kill()
    if what != "client":
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=300)
    assert wait_until(
        lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children), LONG_S
    ), "the JVM outlived its client"


@pytest.mark.skipif(KILLS == 0, reason="half a minute for a kill of everything: make chaos")
@pytest.mark.timeout(240 + 60 * KILLS)
def test_a_topic_reaches_lookups_exactly_once_though_everything_is_killed(
    shop: Project, kafka_broker: KafkaServer
) -> None:
    print(f"PAIMON_FEATURES_SEED={SEED}")
    rng = random.Random(SEED)
    topic = Topic(kafka_broker, 3)
    producer = Producer(topic, SEED)
    source = shop.definitions.source("clicks")

    def commits() -> int:
        return sum(1 for _ in snapshots(shop.lake, source.table))

    ways = rng.sample(["client", "jvm", "both"], 3)
    with producer.sending():
        for number in range(KILLS):
            before = commits()
            client = command(shop, "ingest", "topic", "clicks", topic.name)
            await_while_running(lambda: commits() > before, client)  # noqa: B023
            if number % 2 == 0:  # the broker, with a job that reads from it
                kafka_broker.kill()
                time.sleep(rng.uniform(0.0, 1.0))
                kafka_broker.start()
                before = commits()
                await_while_running(lambda: commits() > before, client)  # noqa: B023
            time.sleep(rng.uniform(0.0, 1.0))
            kill(client, ways[number % len(ways)])
    producer.send(50)
    topic.flush()

    total = len(producer.events) + producer.poisoned
    deadline = time.monotonic() + 120

    def report(progress: IngestProgress) -> None:
        rows = [read_arrow(shop.lake, t).num_rows for t in (source.table, source.rejected_table)]
        assert time.monotonic() < deadline, (progress, rows, total)
        if sum(rows) >= total:
            signal.raise_signal(signal.SIGINT)

    found = KafkaTopic(kafka_broker.address, topic.name, "other", topic_columns(source, {}))
    with pytest.raises(KeyboardInterrupt):
        ingest_kafka(shop.lake, source, found, state_dir=shop.config.state_dir, progress=report)

    rows = read_arrow(shop.lake, source.table, columns=list(source.schema)).to_pylist()
    assert Counter(row["n"] for row in rows) == Counter(range(len(producer.events)))
    rejects = read_arrow(shop.lake, source.rejected_table).to_pylist()
    assert Counter(row["reason"] for row in rejects) == {"unreadable": producer.poisoned}
    assert len({row["origin"] for row in rejects}) == len(rejects)

    submit(TileTarget.of(shop, "spend"), bounded=True)
    materializer = command(shop, "materialize", "--follow", "--json")
    assert materializer.stdout is not None
    assert materializer.stdout.readline()  # a step, of several
    materializer.kill()
    materializer.communicate()
    again = command(shop, "materialize")
    assert again.wait(120) == 0, again.communicate()[0]
    again.communicate()
    assert_lookups(shop, producer.events)


def assert_lookups(shop: Project, events: list[dict[str, int]]) -> None:
    by_user: dict[int, list[dict[str, int]]] = defaultdict(list)
    for event in events:
        by_user[event["user"]].append(event)
    view = shop.definitions.view("spend")
    names = [f"spend:{feature.name}" for feature in view.compiled.features]
    keys = {"user": list(range(USERS + 1))}
    reply = shop.get_online_features(names, keys, as_of_ms=NOW_MS).to_pylist()
    for user, row in enumerate(reply):
        expected = answer(view, by_user[user], NOW_MS, online=True)
        assert {f.name: row[f.name] for f in view.compiled.features} == expected.values
