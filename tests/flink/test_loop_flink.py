"""From a topic to HTTP on a cluster, with everything on S3, while everything is killed: exact.

``make chaos`` kills for ten minutes. PAIMON_FEATURES_LOOP_MINUTES is another time, and
PAIMON_FEATURES_SEED repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.cluster import LocalCluster
from paimon_features.lake import read_arrow
from paimon_features.project import Project
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.tiles.jobs.jobs import lag_snapshots
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.iteration.halving_program import PROGRAM
from tests.flink.loop.judge import Judge
from tests.flink.loop.processes import Loop
from tests.flink.loop.traffic import FEATURES, NOBODY, TIMES_MS, USERS, Producer, Readers
from tests.flink.s3_shop import JOBS, S3Shop, s3_shop
from tests.flink.zookeeper import ZooKeeper
from tests.kafka_topics import Topic
from tests.servers.kafka_server import KafkaServer
from tests.servers.object_store import Disturbance
from tests.tile_jobs import wrong_tiles

pytestmark = [
    pytest.mark.flink,
    pytest.mark.kafka,
    pytest.mark.redis,
    pytest.mark.timeout(0),
    part_of_chaos("minutes of kills"),
]

MINUTES = float(os.environ.get("PAIMON_FEATURES_LOOP_MINUTES", "1"))
SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
QUIET_S = 900.0
"""The longest that everything may take to come to rest after the last kill."""
CLUSTER = ["--task-managers", "2", "--slots", "4", "--memory-mb", "1200"]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer(port=free_ports(1)[0]) as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Shop]:
    with s3_shop(tmp_path / "shop", FEATURES, redis.url, monkeypatch) as shop:
        yield shop


def test_every_event_counts_once_and_every_reply_is_right_while_everything_is_killed(
    shop: S3Shop, tmp_path: Path, redis: RedisServer
) -> None:
    print(f"PAIMON_FEATURES_SEED={SEED} for {MINUTES:g} minutes")
    rng = random.Random(SEED)
    project = Project.open(shop.folder)
    loop = Loop(shop.folder, rng, LocalCluster(project.config.state_dir))
    loop.redis, loop.s3 = redis, shop.store.server
    view = project.definitions.view("spend")
    source = view.source
    with ExitStack() as stack:
        loop.broker = stack.enter_context(KafkaServer())
        loop.zookeeper = stack.enter_context(ZooKeeper())
        stack.callback(loop.cluster.stop)
        producer = Producer(Topic(loop.broker, partitions=2), SEED)
        stack.callback(producer.stop)
        jobs = [
            ["ingest", "topic", "clicks", producer.topic.name, "--kafka", loop.broker.address],
            ["submit", "spend", "--parallelism", "2"],
        ]
        jobs = [[*job, "--cluster"] for job in jobs]
        producer.send(200)
        start = ["cluster", "start", *CLUSTER, "--ha", loop.zookeeper.address]
        shop.run(["apply"], start, *jobs)
        target = TileTarget.of(project, "spend")
        first_job = (target.record().job or {})["job_id"]

        def caught_up() -> bool:
            loop.look_after()
            producer.topic.flush()
            with suppress(Exception):  # the store or a table may be behind for a moment
                tables = (source.table, source.rejected_table)
                rows = [read_arrow(project.lake, name).num_rows for name in tables]
                assert rows[0] <= len(producer.events)
                return (
                    rows == [len(producer.events), producer.poisoned]
                    and lag_snapshots(project.lake, target.events, target.consumer) == 0
                )
            return False

        loop.serve(stack)
        readers = Readers(producer, loop.server.port, SEED)
        stack.callback(readers.stop)

        def served() -> bool:
            loop.look_after()
            newest = readers.newest([*range(USERS)], TIMES_MS[0])
            if newest.status != 200:
                return False
            at = newest.reply["metadata"]["feature_names"].index("count")
            counts = newest.reply["results"][at]["values"]
            return dict(enumerate(counts)) == producer.counts()

        assert wait_until(served, QUIET_S, 0.5), loop.cluster.status()
        producer.start()
        readers.start()
        began = time.monotonic()
        shop.store.disturbance = disturbance = Disturbance(
            SEED, refused=0.01, lost=0.005, cut=0.005, latency_s=0.01
        )
        while time.monotonic() < began + 60 * MINUTES or len(loop.kills) < 3:
            loop.round()
            # at times everything recovers, at times more is killed while it does
            if rng.random() < 0.4:
                wait_until(lambda: loop.is_fresh(readers.exchanges, producer), 240, 0.5)
            time.sleep(rng.uniform(1, 15))
        shop.store.disturbance = None
        producer.stop()
        calm = time.monotonic()
        assert wait_until(caught_up, QUIET_S, 1.0), loop.cluster.status()
        assert wait_until(served, QUIET_S, 0.5), loop.follower.log.read_text()[-3_000:]
        print(f"at rest {time.monotonic() - calm:.1f} s after the last event")
        readers.stop()
        print(loop.report(readers.exchanges, producer))
        print(f"{len(loop.kills)} kills; requests to S3: {dict(disturbance.counts)}")
        # nobody has submitted a job again
        assert (target.record().job or {})["job_id"] == first_job
        # the states of these jobs are continued from savepoints
        outputs = shop.run(["submit", "spend", "--stop"], ["ingest", "topic", "clicks", "--stop"])
        assert all(f"savepoint {JOBS}/checkpoints/" in text for text in outputs)
        producer.send(100)
        shop.run(*jobs)
        assert wait_until(caught_up, QUIET_S, 1.0), loop.cluster.status()
        program, output = tmp_path / "halve_it.py", tmp_path / "halved"
        program.write_text(PROGRAM)
        iterate = ["jobs", "iterate", f"{program}:build", "--cluster", "--mode", "thread"]
        iterate += ["--wire", "memory", "--parallelism", "1", "--output", str(output)]
        shop.run(
            iterate,
            ["submit", "spend", "--stop"],
            ["ingest", "topic", "clicks", "--stop"],
            ["cluster", "stop"],
        )
        assert wait_until(served, QUIET_S, 0.5), loop.follower.log.read_text()[-3_000:]
        for as_of_ms in TIMES_MS:
            readers.newest([*range(USERS), NOBODY], as_of_ms)
        shop.run(["verify", "churn", "--sample", str(USERS)], ["check"])

    # each event once, in the table and in the tiles
    numbers = read_arrow(project.lake, source.table, columns=["n"])["n"].to_pylist()
    assert Counter(numbers) == Counter(range(len(producer.events)))
    rejects = read_arrow(project.lake, source.rejected_table)["reason"].to_pylist()
    assert Counter(rejects) == {"unreadable": producer.poisoned}
    assert wrong_tiles(project.lake, view, target.tables[0], producer.events) == []
    # every reply
    judge = Judge(project.lake, view, target.tables[0], producer)
    answers = [one for one in readers.exchanges if one.status == 200]
    named = {one.reply["metadata"]["freshness"]["spend"]["applied_snapshot"] for one in answers}
    assert judge.read_snapshots(named - {0}) == []
    wrong = [
        f"{one.sent_ms}: {text}"
        for one in readers.exchanges
        if (text := judge.wrong(one, loop.may_break(one))) is not None
    ]
    print(
        f"{len(producer.events)} events, {producer.poisoned} poisoned messages, "
        f"{len(readers.exchanges)} replies {dict(judge.statuses)}, {judge.stale} of them stale, "
        f"of {len(named)} snapshots"
    )
    assert not wrong, f"{len(wrong)} wrong replies\n" + "\n".join(wrong[:10])
    # a command ends if the store of the tables is away for long while it starts
    faults = [text for text in loop.ended if "the store failed each of" not in text]
    print(f"{len(loop.ended)} starts again of a materializer or server that had ended by itself")
    assert not faults, "\n".join(faults)
    assert not list(tmp_path.rglob("_paimon_features"))
    from paimon_features.iteration.flink import FileOutput

    assert FileOutput(output / "model").read() == [[0.0625]]
