"""High availability by a real ZooKeeper: what is killed comes back without a human, exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from paimon_features.flink.cluster import JOB_MANAGER, ClusterShape, LocalCluster
from paimon_features.flink.tiles.submission import submit
from paimon_features.flink_rest import FlinkRest
from paimon_features.job_control.jobs import cancel, job_state, lag_snapshots
from paimon_features.job_control.target import TileTarget
from paimon_features.testing.zookeeper import ZooKeeper
from paimon_features.waiting import wait_until
from tests.flink.feed import Feed

pytestmark = [
    pytest.mark.flink,
    pytest.mark.timeout(900),
    pytest.mark.skipif("PAIMON_FEATURES_KILLS" not in os.environ, reason="a part of make chaos"),
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
