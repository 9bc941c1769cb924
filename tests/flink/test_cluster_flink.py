"""A real session cluster on this host: started, used, damaged and stopped."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.errors import ConfigurationError, OwnershipError, UnknownNameError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.flink.kafka_security import secret_folder
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.flink.topic import cluster_job_status, ingest_kafka, stop_cluster_job
from paimon_features.lake import Lake, read_arrow
from paimon_features.lake.ownership.lease import FlinkJobHolder, holder_of
from paimon_features.offline.flink import engine as history
from tests.chaos import part_of_chaos
from tests.commands import invoke
from tests.flink.ingest.click_source import CLICKS, clicks, new_lake
from tests.kafka_topics import OTHER_PASSWORD, OTHER_USER, Topic
from tests.matrix import Cell, wrong
from tests.matrix_paths import MatrixLake
from tests.servers.kafka_server import KafkaServer
from tests.waiting import await_true

pytestmark = pytest.mark.flink

SHAPE = ClusterShape(task_managers=1, slots=4, task_manager_mb=1200, job_manager_mb=800)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A running cluster in a project."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    local = LocalCluster(folder / ".paimon-features")
    local.start(SHAPE)
    yield local
    local.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path)


def run(cluster: LocalCluster, *arguments: str) -> Result:
    return invoke("cluster", *arguments, project=cluster.state_dir.parent)


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
                address = ipaddress.ip_address(b"".join(words))
                found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def test_a_started_cluster_has_its_slots_and_shows_where_it_is(cluster: LocalCluster) -> None:
    await_true(lambda: cluster.status().slots_free == 4)
    found = cluster.status()
    assert found.running
    assert (found.slots_total, found.slots_free, len(found.pids)) == (4, 4, 2)
    assert FlinkRest(found.address or "").alive()
    shown = run(cluster)
    assert shown.exit_code == 0
    assert f"address  {found.address}" in shown.output
    assert "slots    4 free of 4" in shown.output


def test_a_second_start_does_nothing_and_another_shape_is_rejected(
    cluster: LocalCluster,
) -> None:
    before = cluster.status()
    assert cluster.start() == cluster.start(SHAPE)
    again = run(cluster, "start", "--json")
    assert json.loads(again.stdout)["pids"] == list(before.pids)
    other = run(cluster, "start", "--slots", "3")
    assert other.exit_code == 2
    assert "'paimon-features cluster stop' ends it" in other.output
    assert cluster.status().pids == before.pids


def test_a_cluster_uses_only_its_folder_and_the_loopback_interface(cluster: LocalCluster) -> None:
    made = {path.name for path in cluster.folder.iterdir()}
    assert {"cluster.json", "conf", "log", "pid", "processes.json", "supervisor.json"} <= made
    for pid in cluster.status().pids:
        addresses = listening(pid)
        assert addresses
        assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


@pytest.mark.long
def test_files_are_ingested_by_a_job_that_owns_its_tables(
    cluster: LocalCluster, lake: Lake, tmp_path: Path
) -> None:
    address = cluster.status().address
    (tmp_path / "a.jsonl").write_text(clicks(0, 100))
    holders = []
    result = ingest_files(
        lake,
        CLICKS,
        [tmp_path / "a.jsonl"],
        state_dir=cluster.state_dir,
        cluster=address,
        progress=lambda _: holders.append(holder_of(lake, CLICKS.table)),
    )
    assert (result.accepted, result.rejected) == (100, {"unreadable": 10})
    assert holders[0] is not None
    assert isinstance(holders[0].holder, FlinkJobHolder)
    assert holder_of(lake, CLICKS.table) is None
    assert [job.state for job in cluster.status().jobs] == ["FINISHED"]


@pytest.mark.long
@pytest.mark.kafka
def test_a_detached_stream_resumes_from_its_savepoint(
    cluster: LocalCluster, lake: Lake, kafka_broker: KafkaServer
) -> None:
    sent = Topic(kafka_broker)
    topic = KafkaTopic(kafka_broker.secure_address, sent.name, "g", topic_columns(CLICKS, {}))
    assert kafka_broker.secure is not None
    pem = kafka_broker.secure.certificate.parent
    settings = KafkaSettings(
        tls=True,
        tls_ca=pem / "ca.pem",
        tls_cert=pem / "ca.pem",
        tls_key=pem / "client.key",
        user=OTHER_USER,
        mechanism="PLAIN",
        password=OTHER_PASSWORD,
    )
    secrets = secret_folder(cluster.state_dir, CLICKS.name)

    def follow() -> str:
        return ingest_kafka(
            lake,
            CLICKS,
            topic,
            state_dir=cluster.state_dir,
            checkpoint_interval_ms=200,
            parallelism=1,
            cluster=cluster.status().address,
            settings=settings,
        )

    def rows() -> int:
        return read_arrow(lake, CLICKS.table, columns=["id"]).num_rows

    sent.send(clicks(0, 500).encode().splitlines())
    first = follow()
    with pytest.raises(OwnershipError, match=f"owned by Flink job {first}"):
        follow()
    await_true(lambda: rows() == 500)
    rest = FlinkRest(cluster.status().address or "")
    await_true(lambda: rest.restarts(first) == 0)  # the cluster collects metrics now and then

    def shown() -> str:
        status = str(cluster_job_status(lake, CLICKS))
        assert status.startswith(f"job {first} on http://{cluster.status().address} is RUNNING: ")
        return status

    await_true(lambda: ": 550 rows read" in shown() and shown().endswith("/s, 0 messages behind"))
    # the task manager reads the login when it connects; the job and Flink's logs do not have it
    assert OTHER_PASSWORD in (secrets / "login.properties").read_text()
    for path in (path for path in cluster.state_dir.rglob("*") if path.is_file()):
        assert path.parent == secrets or OTHER_PASSWORD.encode() not in path.read_bytes(), path
    job_id, savepoint = stop_cluster_job(lake, CLICKS, cluster.state_dir)
    assert not secrets.exists()
    assert job_id == first
    assert savepoint is not None
    with pytest.raises(UnknownNameError, match="no job on a cluster ingests into 'clicks'"):
        stop_cluster_job(lake, CLICKS)

    sent.send(clicks(500, 500).encode().splitlines())
    second = follow()
    await_true(lambda: rows() >= 1_000)
    FlinkRest(cluster.status().address or "").cancel(second)
    found = read_arrow(lake, CLICKS.table, columns=["id"])["id"].to_pylist()
    assert sorted(found) == list(range(1_000))


@part_of_chaos("other jobs run on the cluster")
def test_historical_features_run_on_the_cluster_and_ctrl_c_cancels_the_job(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = cluster.record()
    assert record is not None
    cell = Cell("sawtooth", "5min", "1h", "sorted")
    stored = MatrixLake(tmp_path, cell)
    engine = history.FlinkHistoryEngine(cluster.state_dir, 2, record.address)
    given = stored.as_of(cell, cell.questions, 3, engine)
    assert not wrong(cell, cell.questions, given)

    def interrupted(line: str) -> None:
        if "has joined for" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(history, "MESSAGE_EVERY_S", 0.0)
    engine = history.FlinkHistoryEngine(cluster.state_dir, 2, record.address, interrupted)
    with pytest.raises(KeyboardInterrupt):
        stored.as_of(cell, cell.questions, 3, engine)
    states = [j.state for j in FlinkRest(record.address).jobs() if "historical" in j.name]
    assert states == ["CANCELED", "FINISHED"]
    assert not [name for name in stored.lake.list() if name.startswith("staging_")]


@pytest.mark.long
def test_a_lost_process_is_started_again_and_stop_ends_all(cluster: LocalCluster) -> None:
    job_manager, task_manager = cluster.status().pids

    def restarted(name: str, pid: int) -> bool:
        found = {state.name: state for state in cluster.status().processes}[name]
        return found.restarts == 1 and found.pid not in (None, pid)

    os.kill(task_manager, signal.SIGKILL)
    await_true(lambda: restarted("taskmanager-1", task_manager))
    await_true(lambda: cluster.status().slots_free == 4)
    os.kill(job_manager, signal.SIGKILL)
    await_true(lambda: restarted("jobmanager", job_manager))
    await_true(lambda: cluster.status().slots_free == 4)
    shown = run(cluster).output
    for name in ("jobmanager", "taskmanager-1"):
        assert re.search(f"process  {name}: pid [0-9]+, restarted once, last after signal 9", shown)
    log = (cluster.log_dir / "supervisor.log").read_text()
    assert f"taskmanager-1 (pid {task_manager}) has ended with -9" in log
    pids, supervisor = cluster.status().pids, cluster.status().supervisor
    stopped = run(cluster, "stop", "--json")
    assert json.loads(stopped.stdout) == {"stopped_pids": list(pids)}
    for pid in (job_manager, task_manager, supervisor, *pids):
        assert not Path(f"/proc/{pid}/exe").exists()
    assert run(cluster).exit_code == 1
    again = run(cluster, "stop")
    assert (again.exit_code, again.output) == (0, "no cluster runs\n")


def test_a_size_that_flink_does_not_support_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="task_manager_mb = 512; expected at least 1024"):
        ClusterShape(task_manager_mb=512)


@pytest.mark.long
def test_processes_of_several_hosts_connect_and_end_on_sigterm(
    tmp_path: Path,
) -> None:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    rng = random.Random()
    # a separate loopback address, because the ports are Flink's defaults
    host = f"127.{rng.randint(1, 250)}.{rng.randint(1, 250)}.{rng.randint(1, 250)}"
    command = [sys.executable, "-c", "from paimon_features.cli import main; main()", "cluster"]
    place = ["--address", host, "--host", host, "--listen", host, "--project", str(tmp_path)]
    managers = ["jobmanager"], ["taskmanager", "--slots", "3", "--memory-mb", "1024"]
    processes = [
        subprocess.Popen([*command, "run", *manager, *place], stdout=subprocess.DEVNULL)
        for manager in managers
    ]
    try:
        rest = FlinkRest(f"{host}:8081")
        await_true(lambda: rest.alive() and int(rest.overview()["slots-total"]) == 3)
    finally:
        for process in processes:
            process.terminate()
        ends = [process.wait(120) for process in processes]
    assert set(ends) <= {0, 143, -15}
