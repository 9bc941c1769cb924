"""The loop with a warehouse on S3 and no shared folder; ``make chaos``: all of it, with a kill."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.flink.cluster import LocalCluster
from paimon_features.job_control.jobs import lag_snapshots
from paimon_features.job_control.restart import find_checkpoints
from paimon_features.job_control.target import TileTarget
from paimon_features.project import Project
from paimon_features.setup.kafka_server import KafkaServer
from paimon_features.tables import latest_snapshot, lease, read_arrow
from paimon_features.testing.object_store import Disturbance, ObjectStore, object_store
from paimon_features.testing.tile_jobs import wrong_tiles
from paimon_features.testing.zookeeper import ZooKeeper
from paimon_features.waiting import wait_until
from tests import s3_servers
from tests.chaos import part_of_chaos
from tests.flink.iteration.halving_program import PROGRAM
from tests.kafka_topics import Topic
from tests.serving.chaos.processes import Follower, Server

pytestmark = pytest.mark.flink

ROOT = Path(__file__).parents[2]
NOW_MS = 1_700_000_000_000
FEATURES = """
import paimon_features as pf

retail = pf.EventSource(
    "retail",
    schema={"customer_id": pf.Int64, "amount": pf.Int64, "at_ms": pf.Int64},
    event_time="at_ms",
)
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView(
    "spend",
    source=retail,
    entity=customer,
    features=[pf.Sum("amount", windows=["1d", None], bound=1000), pf.Count(windows=["1d"])],
)
churn = pf.FeatureService("churn", [spend])
"""

_RUN = """
import json, sys
from click.testing import CliRunner
from paimon_features.cli import cli
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(cli, arguments)
    if result.exit_code and result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    print(json.dumps([result.exit_code, result.output]), flush=True)
"""


@dataclass
class Shop:
    """A project whose warehouse is on the store, and its commands in processes of their own."""

    folder: Path
    store: ObjectStore
    environ: dict[str, str]

    def start(self, commands: Sequence[Sequence[str]]) -> subprocess.Popen[str]:
        """Run commands in one process: it starts a JVM of its own, with the jars for S3."""
        given = json.dumps([[*command, "--project", str(self.folder)] for command in commands])
        return subprocess.Popen(
            [sys.executable, "-c", _RUN, given],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *commands: Sequence[str]) -> list[str]:
        """The output of each command, which must succeed."""
        process = self.start(commands)
        output, _ = process.communicate(timeout=240)
        results = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for command, (code, text) in zip(commands, results, strict=False):
            assert code == 0, f"{command}: {text}"
        assert len(results) == len(commands), output
        assert self.store.secret not in output
        return [text for _, text in results]


@pytest.fixture
def shop(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    with object_store("bucket", s3_servers.strictest()) as store:
        (folder / "paimon-features.toml").write_text(
            '[project]\nname = "shop"\n'
            '[lake]\nwarehouse = "s3://bucket/lake"\n'
            f'options = {{ endpoint = "{store.endpoint}" }}\n'
            f'[online]\nurl = "{redis_url}"\n'
            '[flink]\nparallelism = 1\ncheckpoint_interval = "500ms"\n'
            'checkpoints = "s3://bucket/jobs"\n'
        )
        for name, value in {
            "AWS_ACCESS_KEY_ID": store.key,
            "AWS_SECRET_ACCESS_KEY": store.secret,
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield Shop(folder, store, dict(os.environ))


def events(first: int, count: int) -> list[dict[str, int]]:
    """Events of five customers, one a minute."""
    return [
        {"customer_id": n % 5, "amount": n % 97, "at_ms": NOW_MS - 86_400_000 + n * 60_000}
        for n in range(first, first + count)
    ]


def write(path: Path, rows: list[dict[str, int]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.mark.long
def test_files_become_lookups_on_s3(shop: Shop, tmp_path: Path) -> None:
    rows = events(0, 400)
    found = shop.run(
        ["apply"],
        ["ingest", "retail", write(tmp_path / "events.csv", rows)],
        ["submit", "spend", "--bounded"],
        ["materialize"],
        ["lookup", "churn", "--entity", "customer_id=0,3", "--as-of", str(NOW_MS), "--json"],
        ["check"],
    )
    project = Project.open(shop.folder)
    target = TileTarget.of(project, "spend")
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], rows) == []
    sums = [sum(row["amount"] for row in rows if row["customer_id"] == key) for key in (0, 3)]
    assert _numbers(json.loads(found[4])) >= {*sums, 80}
    assert lease.holders(project.lake) == []
    assert not list(tmp_path.rglob("_paimon_features"))


@part_of_chaos("a minute")
def test_the_loop_is_exact_on_s3_also_after_a_kill(shop: Shop, tmp_path: Path) -> None:
    first, second = events(0, 400), events(400, 300)
    files = [write(tmp_path / f"{n}.csv", rows) for n, rows in enumerate((first, second))]
    # ingest, then a job that is killed after it has committed
    job = shop.start([["apply"], ["ingest", "retail", files[0]], ["submit", "spend"]])
    project = Project.open(shop.folder)
    try:
        target = _await_commit(project, job)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        said, _ = job.communicate()
    assert shop.store.secret not in said
    assert target.checkpoint_folder.is_dir()

    rows = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"customer_id": [0, 1, 2, 3, 4, 9], "event_time_ms": [NOW_MS] * 6}), rows
    )
    output = tmp_path / "history.parquet"
    found = shop.run(
        ["ingest", "retail", files[0]],  # each file once
        ["ingest", "retail", files[1]],
        ["submit", "spend", "--bounded"],
        ["materialize"],
        ["lookup", "churn", "--entity", "customer_id=0,3", "--as-of", str(NOW_MS), "--json"],
        ["history", "--features", "churn", "--rows", str(rows), "--output", str(output)],
        ["training-set", "churn", "--service", "churn", "--rows", str(rows)],
        ["verify", "churn", "--sample", "5", "--times", "2"],
        ["maintain", "tiles_spend_g1", "--keep-newest", "2"],
        ["materialize"],
        ["check"],
    )

    # the tiles, by the oracle
    everything = [*first, *second]
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], everything) == []
    assert read_arrow(project.lake, "events_retail").num_rows == 700
    # features, by hand
    sums = {
        key: sum(row["amount"] for row in everything if row["customer_id"] == key)
        for key in range(5)
    }
    counts = dict.fromkeys(range(5), 140)
    history = {row["customer_id"]: row for row in pq.read_table(output).to_pylist()}
    training = read_arrow(project.lake, "training_churn").to_pylist()
    assert {row["customer_id"]: row for row in training} == history
    for key in range(5):
        assert history[key]["sum_amount"] == history[key]["sum_amount_1d"] == sums[key]
        assert history[key]["count_1d"] == counts[key]
    looked_up = json.loads(found[4])
    assert _numbers(looked_up) >= {sums[0], sums[3], 140}
    # nobody owns a table any more, and nothing was written beside the store
    assert lease.holders(project.lake) == []
    assert not list(tmp_path.rglob("_paimon_features"))


@pytest.mark.kafka
@pytest.mark.timeout(0)
@part_of_chaos("minutes of kills")
def test_everything_on_s3_is_exact_while_processes_are_killed(
    shop: Shop, tmp_path: Path, kafka_broker: KafkaServer
) -> None:
    """From a topic to HTTP, on a cluster of two task managers with its checkpoints, savepoints and
    high availability on a slow S3 that fails at times; PAIMON_FEATURES_LOOP_MINUTES of kills of the
    cluster's processes, the broker, the materializer and the server's workers."""
    minutes = float(os.environ.get("PAIMON_FEATURES_LOOP_MINUTES", "1"))
    seed = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
    print(f"PAIMON_FEATURES_SEED={seed}")
    rng = random.Random(seed)
    sent, topic = 0, Topic(kafka_broker, partitions=2)
    ingest = ["ingest", "retail", "--kafka", kafka_broker.address, "--topic", topic.name]
    jobs = [[*ingest, "--cluster"], ["submit", "spend", "--cluster", "--parallelism", "2"]]
    sizes = ["--task-managers", "2", "--slots", "4", "--memory-mb", "1200"]

    def send(count: int) -> None:
        nonlocal sent
        topic.send([json.dumps(row).encode() for row in events(sent, count)])
        sent += count

    project = Project.open(shop.folder)
    cluster = LocalCluster(project.config.state_dir)

    def caught_up() -> bool:
        with suppress(Exception):  # the store or a table may be behind for a moment
            target = TileTarget.of(project, "spend")
            rows = read_arrow(project.lake, "events_retail", columns=["at_ms"]).num_rows
            assert rows <= sent
            return rows == sent and lag_snapshots(project.lake, target.events, target.consumer) == 0
        return False

    def replies(port: int) -> dict[int, int]:
        """The lifetime sums that the feature server answers, by customer."""
        asked = {"feature_service": "churn", "entities": {"customer_id": list(range(5))}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/get-online-features",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        for attempt in range(20):  # the worker that reads it may be killed
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as reply:
                document = json.loads(reply.read())
                break
            time.sleep(0.1 * attempt)
        else:
            raise AssertionError("no worker of the server replies")
        at = document["metadata"]["feature_names"].index("sum_amount")
        return dict(enumerate(value or 0 for value in document["results"][at]["values"]))

    def total(key: int) -> int:
        return sum(row["amount"] for row in events(0, sent) if row["customer_id"] == key)

    outside = ExitStack()
    try:
        with ZooKeeper() as zookeeper:
            send(300)
            start = ["cluster", "start", *sizes, "--ha", zookeeper.address]
            shop.run(["apply"], start, *jobs)
            server, follower = Server(shop.folder, workers=2), Follower(shop.folder)
            outside.callback(server.stop)
            outside.callback(follower.stop)
            before = dict.fromkeys(range(5), 0)
            target = TileTarget.of(project, "spend")
            first = (target.record().job or {})["job_id"]
            until = time.monotonic() + 60 * minutes
            kills = 0
            shop.store.disturbance = Disturbance(
                seed, refused=0.01, lost=0.005, cut=0.005, latency_s=0.01
            )
            while time.monotonic() < until or kills < 3:
                states = [state for state in cluster.status().processes if state.pid is not None]
                for state in rng.sample(states, min(len(states), rng.choice((1, 1, 2)))):
                    with suppress(ProcessLookupError):
                        os.kill(state.pid or 0, signal.SIGKILL)
                if rng.random() < 0.3:
                    follower.kill()
                    follower.start()
                if rng.random() < 0.3:
                    server.kill_worker(rng)
                if rng.random() < 0.2:
                    kafka_broker.kill()
                    kafka_broker.start()
                kills += 1
                send(rng.randrange(20, 200))
                # amounts are not negative: a sum never falls, nor exceeds what was sent
                after = replies(server.port)
                assert all(before[key] <= after[key] <= total(key) for key in before), after
                before = after
                time.sleep(rng.uniform(1, 20))
            assert wait_until(caught_up, 600, 2.0), cluster.status()
            print(f"{kills} rounds of kills, {sent} events, {dict(shop.store.disturbance.counts)}")
            # nobody has submitted a job again
            assert (target.record().job or {})["job_id"] == first
            said = shop.run(["cancel", "spend"], ["ingest", "retail", "--stop"])
            assert all("savepoint s3://bucket/jobs/checkpoints/" in text for text in said)
            send(100)
            shop.run(*jobs)
            assert wait_until(caught_up, 600, 2.0), cluster.status()
            program = tmp_path / "halve_it.py"
            program.write_text(PROGRAM)
            output = tmp_path / "halved"
            iterate = ["jobs", "iterate", f"{program}:build", "--cluster", "--mode", "thread"]
            iterate += ["--wire", "memory", "--parallelism", "1", "--output", str(output)]
            shop.run(
                iterate,
                ["cancel", "spend"],
                ["ingest", "retail", "--stop"],
                ["cluster", "stop"],
            )
        expected = {key: total(key) for key in range(5)}
        assert wait_until(lambda: replies(server.port) == expected, 120, 1.0), follower.log
    finally:
        outside.close()
        cluster.stop()
    everything = events(0, sent)
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], everything) == []
    rows = read_arrow(project.lake, "events_retail", columns=["at_ms"])["at_ms"].to_pylist()
    assert sorted(rows) == [row["at_ms"] for row in everything]
    from paimon_features.flink.iteration import FileOutput

    assert FileOutput(output / "model").read() == [[0.0625]]


def _await_commit(project: Project, job: subprocess.Popen[str]) -> TileTarget:
    """Wait until the job has a checkpoint that covers what it has committed."""
    deadline = time.monotonic() + 240
    target = None
    while time.monotonic() < deadline:
        assert job.poll() is None, job.communicate()[0]
        try:
            target = target or TileTarget.of(project, "spend")
            if latest_snapshot(project.lake, target.tables[0]) is not None and list(
                find_checkpoints(target.checkpoint_folder)
            ):
                return target
        except Exception as error:  # not applied yet
            print(error)
        time.sleep(0.5)
    raise AssertionError("the job has committed nothing")


def _numbers(document: Any) -> set[float]:
    """All numbers in a JSON document."""
    if isinstance(document, dict):
        return set().union(*map(_numbers, document.values())) if document else set()
    if isinstance(document, list):
        return set().union(*map(_numbers, document)) if document else set()
    return {document} if isinstance(document, (int, float)) else set()
