"""High availability by a real ZooKeeper: what is killed comes back without a human, exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.cluster import JOB_MANAGER, ClusterShape, LocalCluster, Manager
from paimon_features.project import Project
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel, job_state, lag_snapshots
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.feed import Feed
from tests.flink.zookeeper import ZooKeeper
from tests.serving.chaos.processes import ROOT, Proxy

pytestmark = [
    pytest.mark.flink,
    pytest.mark.timeout(900),
    part_of_chaos("clusters with ZooKeeper"),
]

WAIT_S = 240.0
SHAPE = ClusterShape(task_managers=2, slots=2, task_manager_mb=1024, job_manager_mb=768)


@pytest.fixture
def cluster(target: TileTarget) -> Iterator[LocalCluster]:
    local = LocalCluster(target.state_dir)
    with ZooKeeper() as zookeeper:
        try:
            local.start(SHAPE, zookeeper.address)
            yield local
        finally:
            local.stop()


class TwoLeaders:
    """Two job managers, of which one leads, and a task manager, as processes of this test.

    Each job manager reaches ZooKeeper through a network of its own, which can be cut.
    """

    def __init__(self, project: Project, zookeeper: ZooKeeper, logs: Path) -> None:
        self.project, self.logs = project, logs
        logs.mkdir()
        self.networks = [Proxy(zookeeper.port) for _ in range(2)]
        self.ports = [free_ports(2) for _ in range(2)]
        self.processes = [
            self._start("jobmanager", n, *self.ports[n], f"zookeeper://127.0.0.1:{net.port}/two")
            for n, net in enumerate(self.networks)
        ]
        self.processes.append(
            self._start("taskmanager", 2, *self.ports[0], zookeeper.address.replace("tests", "two"))
        )
        self.address = ",".join(f"127.0.0.1:{rest}" for rest, _ in self.ports)

    def leader(self) -> int:
        """The index of the job manager that leads: the last one that said so."""
        grants = [
            (line[:23], n)
            for n in range(2)
            for line in (self.logs / f"{n}.log").read_text().splitlines()
            if "Resource manager service is granted leadership" in line
        ]
        return max(grants)[1]

    def log(self) -> str:
        """The ends of the processes' outputs."""
        return "\n".join(path.read_text()[-3_000:] for path in sorted(self.logs.iterdir()))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for network in self.networks:
            network.close()

    def _start(
        self, manager: Manager, number: int, rest: int, rpc: int, ha: str
    ) -> subprocess.Popen[bytes]:
        sizes = ["--memory-mb", "768"] if manager == "jobmanager" else ["--memory-mb", "1024"]
        sizes += ["--slots", "2"] if manager == "taskmanager" else []
        here = ["--address", "127.0.0.1", "--host", f"127.0.0.{number + 1}", "--listen", "0.0.0.0"]
        ports = ["--rest-port", str(rest), "--rpc-port", str(rpc), "--ha", ha]
        command = [sys.executable, "-m", "paimon_features", "cluster", "run", manager]
        with (self.logs / f"{number}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *sizes, *here, *ports, "--project", str(self.project.root)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def kill(cluster: LocalCluster, *names: str) -> None:
    """Kill processes of a cluster by SIGKILL, all at once."""
    for state in cluster.status().processes:
        if state.name in names:
            assert state.pid is not None
            os.kill(state.pid, signal.SIGKILL)


def test_a_tile_job_survives_its_job_manager_a_task_manager_and_both(
    target: TileTarget, feed: Feed, cluster: LocalCluster
) -> None:
    record = cluster.record()
    assert record is not None

    def caught_up() -> bool:
        return lag_snapshots(target.lake, target.events, target.consumer) == 0

    feed.commit()
    job_id = submit(target, cluster=record.address).job_id
    assert job_id is not None
    assert wait_until(caught_up, WAIT_S)
    rest = FlinkRest(record.address)
    for killed in ((JOB_MANAGER,), ("taskmanager-1",), (JOB_MANAGER, "taskmanager-2")):
        kill(cluster, *killed)
        feed.commit()
        assert wait_until(caught_up, WAIT_S), killed
        # the same job, which nobody has submitted again
        assert job_state(target.lake, target.record()) == "RUNNING"
        assert (target.record().job or {})["job_id"] == job_id
        feed.commit()
    assert wait_until(caught_up, WAIT_S)
    restarts = {state.name: state.restarts for state in cluster.status().processes}
    assert restarts == {JOB_MANAGER: 2, "taskmanager-1": 1, "taskmanager-2": 1}
    assert cancel(target) is not None
    assert [job.state for job in rest.jobs()] == ["FINISHED"]
    feed.assert_exact()


def test_a_tile_job_survives_a_leader_that_loses_its_network_and_one_that_is_killed(
    project: Project, target: TileTarget, feed: Feed, tmp_path: Path
) -> None:
    #  a   leads ---- cut from ZooKeeper    back, waits    leads ---- savepoint
    #  b   waits      leads --------------- killed
    def caught_up() -> bool:
        return lag_snapshots(target.lake, target.events, target.consumer) == 0

    with ZooKeeper() as zookeeper:
        cluster = TwoLeaders(project, zookeeper, tmp_path / "logs")
        try:
            rest = FlinkRest(cluster.address, timeout_s=60.0)
            assert wait_until(lambda: rest.alive() and rest.task_managers(), WAIT_S), cluster.log()
            feed.commit()
            job_id = submit(target, cluster=cluster.address).job_id
            assert wait_until(caught_up, WAIT_S), cluster.log()
            first = cluster.leader()
            cluster.networks[first].interrupt()
            feed.commit()
            assert wait_until(caught_up, WAIT_S), cluster.log()
            assert cluster.leader() == 1 - first
            cluster.networks[first].restore()
            feed.commit()
            assert wait_until(caught_up, WAIT_S), cluster.log()
            cluster.processes[1 - first].kill()
            feed.commit()
            assert wait_until(caught_up, WAIT_S), cluster.log()
            assert cluster.leader() == first
            # nobody has submitted it again
            assert (target.record().job or {})["job_id"] == job_id
            assert job_state(target.lake, target.record()) == "RUNNING"
            assert cancel(target) is not None
        finally:
            cluster.stop()
    feed.assert_exact()
