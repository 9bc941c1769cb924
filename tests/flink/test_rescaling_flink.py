"""Jobs of a cluster with another parallelism, and under kills of task managers: exact."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import GenerationError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import ingest_kafka, stop_cluster_job
from paimon_features.iteration import IterationListener, ReferenceExecutor
from paimon_features.lake import read_arrow
from paimon_features.offline.flink.engine import FlinkHistoryEngine
from paimon_features.project import Project
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs import rewrite as rewriting
from paimon_features.tiles.jobs.jobs import cancel, job_state, lag_snapshots
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.feed import Feed
from tests.flink.ingest.click_source import CLICKS, new_lake
from tests.iteration import loops
from tests.iteration.loops import bounded
from tests.kafka_topics import Topic
from tests.matrix import Cell, wrong
from tests.matrix_paths import MatrixLake
from tests.servers.kafka_server import KafkaServer

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

import cloudpickle

from paimon_features.iteration.flink import FileOutput, IterationJob, IterationSettings

# where the job runs there are no tests
cloudpickle.register_pickle_by_value(loops)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [
    pytest.mark.flink,
    pytest.mark.timeout(900),
    part_of_chaos("many jobs"),
]

WAIT_S = 240.0
KILLS = 3
SHAPE = ClusterShape(task_managers=2, slots=4, task_manager_mb=1200, job_manager_mb=768)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two task managers with four slots each: a job of four tasks runs though one is lost."""
    local = LocalCluster(tmp_path_factory.mktemp("state"))
    local.start(SHAPE)
    yield local
    local.stop()


@pytest.fixture
def address(cluster: LocalCluster) -> str:
    """The cluster's address, once all its processes are there again."""
    record = cluster.start(SHAPE)
    return record.address


def kill_task_manager(cluster: LocalCluster, address: str, job_id: str) -> None:
    """Kill a task manager that runs a part of the job."""
    pids = [s.pid for s in cluster.status().processes if s.name != "jobmanager" and s.pid]
    os.kill(random.choice(pids), signal.SIGKILL)
    rest = FlinkRest(address)
    assert wait_until(lambda: len(rest.task_managers()) < 2 or rest.state(job_id) != "RUNNING", 120)


def at_parallelism(target: TileTarget, parallelism: int) -> TileTarget:
    return replace(target, flink=replace(target.flink, parallelism=parallelism))


def running_tasks(rest: FlinkRest, job_id: str) -> int:
    """The highest parallelism among the parts of a job."""
    vertices = rest._request(f"/jobs/{job_id}")["vertices"]
    return max(int(vertex["parallelism"]) for vertex in vertices)


def test_a_tile_job_goes_from_two_tasks_to_four_and_back(
    target: TileTarget, feed: Feed, address: str
) -> None:
    for parallelism in (2, 4, 2, 1):
        feed.commit()
        scaled = at_parallelism(target, parallelism)
        result = submit(scaled, cluster=address)
        assert result.job_id is not None
        assert running_tasks(FlinkRest(address), result.job_id) == parallelism
        feed.commit()
        assert wait_until(
            lambda: lag_snapshots(target.lake, target.events, target.consumer) == 0, WAIT_S
        )
        assert cancel(scaled) is not None
    with pytest.raises(GenerationError, match="ran with one task, and Flink cannot resume"):
        submit(at_parallelism(target, 2), cluster=address)
    feed.assert_exact()


def test_a_tile_job_of_four_tasks_loses_task_managers(
    target: TileTarget, feed: Feed, cluster: LocalCluster, address: str
) -> None:
    feed.commit()
    target = at_parallelism(target, 4)
    job_id = submit(target, cluster=address).job_id
    assert job_id is not None
    for _ in range(KILLS):
        feed.commit()
        kill_task_manager(cluster, address, job_id)
        feed.commit()
        assert wait_until(
            lambda: lag_snapshots(target.lake, target.events, target.consumer) == 0, WAIT_S
        )
        assert wait_until(lambda: len(FlinkRest(address).task_managers()) == 2, WAIT_S)
    assert job_state(target.lake, target.record()) == "RUNNING"
    assert cancel(target) is not None
    feed.assert_exact()


def test_an_adaptive_scheduler_continues_with_the_slots_that_are_left(
    target: TileTarget, feed: Feed, tmp_path: Path
) -> None:
    local = LocalCluster(tmp_path / "state")
    shape = replace(SHAPE, slots=2, scheduler="adaptive")
    address = local.start(shape).address
    rest = FlinkRest(address)
    target = at_parallelism(target, 4)

    def caught_up() -> bool:
        return lag_snapshots(target.lake, target.events, target.consumer) == 0

    def runs_with(tasks: int) -> bool:
        return rest.state(job_id) == "RUNNING" and running_tasks(rest, job_id) == tasks

    try:
        feed.commit()
        job_id = submit(target, cluster=address).job_id or ""
        assert wait_until(lambda: runs_with(4), WAIT_S)
        for _ in range(2):
            feed.commit()
            # stopped and not killed: its supervisor would start another one within a second
            pids = [s.pid for s in local.status().processes if s.name != "jobmanager" and s.pid]
            os.kill(pids[0], signal.SIGSTOP)
            feed.commit()
            assert wait_until(lambda: runs_with(2), WAIT_S)
            feed.commit()
            assert wait_until(caught_up, WAIT_S)
            os.kill(pids[0], signal.SIGCONT)
            assert wait_until(lambda: runs_with(4), WAIT_S)
            feed.commit()
            assert wait_until(caught_up, WAIT_S)
        assert cancel(target) is not None
    finally:
        local.stop()
    feed.assert_exact()


@pytest.mark.kafka
def test_ingestion_of_a_topic_is_rescaled_and_loses_task_managers(
    tmp_path: Path, kafka_broker: KafkaServer, cluster: LocalCluster, address: str
) -> None:
    lake = new_lake(tmp_path)
    sent = Topic(kafka_broker, partitions=4)
    topic = KafkaTopic(kafka_broker.address, sent.name, "g", topic_columns(CLICKS, {}))
    count = 0

    def send() -> None:
        nonlocal count
        rows = [
            {"id": count + n, "page": f"p{n % 7}", "at_ms": 1_000 * (count + n)} for n in range(300)
        ]
        sent.send([json.dumps(row).encode() for row in rows])
        count += len(rows)

    def ids() -> list[int]:
        found: list[int] = read_arrow(lake, CLICKS.table, columns=["id"])["id"].to_pylist()
        return sorted(found)

    for parallelism in (2, 4, 2, 4):
        send()
        job_id = ingest_kafka(
            lake,
            CLICKS,
            topic,
            state_dir=cluster.state_dir,
            checkpoint_interval_ms=300,
            parallelism=parallelism,
            cluster=address,
        )
        assert wait_until(lambda: len(ids()) >= count, WAIT_S)
        assert running_tasks(FlinkRest(address), job_id) == parallelism
        if parallelism == 4:
            kill_task_manager(cluster, address, job_id)
            send()
            assert wait_until(lambda: len(ids()) >= count, WAIT_S)
            assert wait_until(lambda: len(FlinkRest(address).task_managers()) == 2, WAIT_S)
        assert stop_cluster_job(lake, CLICKS)[1] is not None
    assert ids() == list(range(count))


def test_historical_features_of_four_tasks_lose_a_task_manager(
    tmp_path: Path, cluster: LocalCluster, address: str
) -> None:
    cell = Cell("sawtooth", "5min", "1h", "sorted")
    stored = MatrixLake(tmp_path, cell)
    lines: list[str] = []
    killed: list[int] = []

    def report(line: str) -> None:
        lines.append(line)
        if "Flink joins them" in line and not killed:
            # the job starts now: the kill meets it wherever it is
            pids = [s.pid for s in cluster.status().processes if s.name != "jobmanager" and s.pid]
            killed.append(random.choice(pids))
            os.kill(killed[0], signal.SIGKILL)

    engine = FlinkHistoryEngine(cluster.state_dir, 4, address, report)
    given = stored.as_of(cell, cell.questions, 3, engine)
    assert killed
    assert not wrong(cell, cell.questions, given)
    assert not [name for name in stored.lake.list() if name.startswith("staging_")]


class Grow(IterationListener):
    """Adds one to its value at the end of each epoch, slowly enough to be killed in between."""

    def open(self, ctx: Any) -> None:
        self.values = ctx.state.map("values")

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.values.put(ctx.epoch, value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        value = self.values.get(epoch)
        self.values.remove(epoch)
        time.sleep(0.1)
        out.collect(value + 1)
        out.side("seen", (ctx.subtask, epoch, value))


def growing(job: Any) -> Any:
    def body(variables: Any, data: Any) -> Any:
        grown = variables.get(0).process(Grow())
        return [grown], {"seen": grown.get_side_output("seen")}, None

    start = job.from_collection([0, 100, 200, 300], 4)
    return bounded([start], body, max_rounds=60)


@pytest.mark.redis
def test_an_iteration_of_four_tasks_loses_task_managers(
    tmp_path: Path, cluster: LocalCluster, address: str, redis_url: str
) -> None:
    files = FileOutput(tmp_path / "files")
    job = IterationJob(
        name="growing",
        settings=IterationSettings(
            mode="thread", wire=redis_url, checkpoint_interval_ms=300, restarts=100
        ),
        cluster=address,
        state_dir=cluster.state_dir,
        parallelism=4,
    )
    running = job.execute_async(growing, {"seen": files})
    killed_at = iter((10, 30))
    due = next(killed_at)

    def watch(statuses: Any) -> None:
        nonlocal due
        if due and (statuses[0].get("epoch") or 0) >= due:
            due = next(killed_at, 0)
            kill_task_manager(cluster, address, running.job_id)

    running.wait(watch)
    assert due == 0
    assert Counter(files.read()) == Counter(ReferenceExecutor().run(growing)["seen"])


def test_a_view_gets_more_buckets_while_events_arrive(
    project: Project, target: TileTarget, feed: Feed, address: str
) -> None:
    #  generation 1 (4 buckets): submit ----- savepoint
    #  generation 2 (3 buckets):              copy, cut off; copy, submit ----- cancel
    feed.commit()
    submit(target, cluster=address)
    feed.commit()
    definitions = project.config.definitions
    text = definitions.read_text()
    definitions.write_text(text.replace("where=", "buckets=3,\n    where="))
    changed = Project.open(project.root)
    shown = str(changed.plan())
    assert "'paimon-features backfill spend --from-generation 1' copies them" in shown
    changed.apply()
    new = TileTarget.of(changed, "spend")
    assert (new.generation, new.view.buckets) == (2, 3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rewriting, "_copy_tiles", lambda *_: exit("killed"))
        with pytest.raises(SystemExit):
            rewriting.rewrite(new, 1)
    feed.commit()  # neither generation reads it now
    with pytest.raises(GenerationError):
        submit(new, cluster=address)
    done = rewriting.rewrite(new, 1)
    assert done.checkpoint is not None
    assert "/g1/" in done.checkpoint
    with pytest.raises(GenerationError, match="is not empty"):
        rewriting.rewrite(new, 1)
    result = submit(new, cluster=address)
    assert result.resumed == done.checkpoint
    feed.commit()
    assert wait_until(lambda: lag_snapshots(new.lake, new.events, new.consumer) == 0, WAIT_S)
    assert cancel(new) is not None
    feed.target = new
    feed.assert_exact()
    assert int(new.lake.table(new.tables[0]).options.bucket()) == 3
