"""Process mode on a session cluster: real Python workers, forked, killed and restarted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
)

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

import cloudpickle

from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.iteration.flink import IterationJob, IterationSettings
from tests.os_processes import is_running
from tests.waiting import await_true

pytestmark = [pytest.mark.flink, pytest.mark.redis]

# where the job runs there are no tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EPOCHS = 5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path / "state")
    local.start(ClusterShape(task_managers=1, slots=2, task_manager_mb=1200, job_manager_mb=800))
    yield local
    local.stop()


class Count(IterationListener):
    """Adds one to its value in each epoch, and emits the value and its process; in one epoch
    its process is killed, once."""

    def __init__(self, killed: Path) -> None:
        self.killed = killed

    def open(self, ctx: Any) -> None:
        self.total = ctx.state.value("total")
        self.subtask = ctx.subtask

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.total.update(self.total.value(0) + value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if epoch == 3 and self.subtask == 1 and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        out.side("reported", (self.subtask, epoch, self.total.value(0), os.getpid(), os.getppid()))
        out.collect(epoch + 1)


def counts(killed: Path) -> Any:
    def build(job: Any) -> Any:
        def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
            went = variables.get(0).process(Count(killed)).name("count")
            return IterationBodyResult(
                DataStreamList.of(went),
                DataStreamList.of(went.get_side_output("reported")),
                went.flat_map(terminate_on_max_iter(EPOCHS)),
            )

        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([10, 20], 2)),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(),
            body,
        ).get(0)

    return build


@pytest.mark.long
def test_workers_are_forked_and_a_killed_one_changes_no_row(
    cluster: LocalCluster, tmp_path: Path, redis_url: str
) -> None:
    record = cluster.record()
    assert record is not None
    job = IterationJob(
        cluster=record.address,
        state_dir=tmp_path / "state",
        settings=IterationSettings(mode="process", wire=redis_url, checkpoint_interval_ms=200),
    )
    reported = job.run(counts(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    # what is fed back in an epoch is the number of the next one
    assert sorted(one[:3] for one in reported) == [
        (subtask, epoch, first + sum(range(epoch + 1)))
        for subtask, first in enumerate([10, 20])
        for epoch in range(EPOCHS)
    ]
    servers = {server for *_, server in reported}
    if sys.platform == "linux":
        assert len(servers) == 1, "the workers of one task manager come from one process"
        (server,) = servers
        assert b"workers/server.py" in Path(f"/proc/{server}/cmdline").read_bytes()
        assert all(is_running(pid) for pid in cluster.status().pids), (
            "the task manager is still there"
        )
    cluster.stop()
    await_true(lambda: not [pid for one in reported for pid in one[3:] if is_running(pid)])
