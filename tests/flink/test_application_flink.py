"""Application mode: Flink's own entry point runs the programs, without a client process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.flink.iteration.outputs import FileOutput
from paimon_features.job_control.jobs import cancel, lag_snapshots
from paimon_features.job_control.target import TileTarget
from paimon_features.project import Project
from paimon_features.tables.lease import FlinkJobHolder, holder_of
from paimon_features.waiting import wait_until
from tests.flink.application_cluster import WAIT_S, ApplicationCluster
from tests.flink.feed import Feed

pytestmark = [pytest.mark.flink, pytest.mark.timeout(600)]

JOB_ID = "ab" * 16

PROGRAM = """
from paimon_features.iteration import *


class Halve(IterationListener):
    def open(self, ctx):
        self.values = ctx.state.map("values")

    def process_element(self, value, ctx, out):
        self.values.put(ctx.epoch, value)

    def on_epoch_watermark_incremented(self, epoch, ctx, out):
        value = self.values.get(epoch) / 2
        self.values.remove(epoch)
        out.collect(value)
        out.side("loss", value)

    def on_iteration_terminated(self, ctx, out):
        out.side("model", [value for _, value in self.values.items()])


def build(job):
    def body(variables, data):
        halved = variables.get(0).process(Halve())
        criteria = halved.get_side_output("loss").flat_map(terminate_on_max_iter_or_tol(100, 0.1))
        outputs = DataStreamList.of(halved.get_side_output("model"))
        return IterationBodyResult(DataStreamList.of(halved), outputs, criteria)

    start = DataStreamList.of(job.from_collection([64.0]))
    data = ReplayableDataStreamList.not_replay()
    config = IterationConfig(wire="memory")
    return {"model": iterate_bounded_streams_until_termination(start, data, config, body).get(0)}
"""


@pytest.fixture
def cluster(project: Project, tmp_path: Path) -> Iterator[ApplicationCluster]:
    started = ApplicationCluster(project.root, tmp_path / "logs")
    try:
        yield started
    finally:
        started.stop()


def test_a_tile_job_without_a_client_is_exact_after_its_job_manager_was_killed(
    target: TileTarget, feed: Feed, cluster: ApplicationCluster
) -> None:
    #  commit  run ---- kill -9   commit  run (same id, resumes) ---- savepoint, exit 0
    tiles = ("tiles", "--view", "spend", "--parallelism", "1", "--job-id", JOB_ID)

    def caught_up() -> bool:
        return lag_snapshots(target.lake, target.events, target.consumer) == 0

    feed.commit()
    first = cluster.run(*tiles)
    cluster.await_state(JOB_ID, "RUNNING")
    assert wait_until(caught_up, WAIT_S), cluster.log()
    held = holder_of(target.lake, target.tables[0])
    assert held is not None
    assert held.holder == FlinkJobHolder(cluster.rest.url, JOB_ID)
    first.kill()
    first.wait()

    feed.commit()
    second = cluster.run(*tiles)
    cluster.await_state(JOB_ID, "RUNNING")
    assert wait_until(caught_up, WAIT_S), cluster.log()
    assert (target.record().job or {})["branch"] == [[JOB_ID, None]]
    feed.commit()
    assert wait_until(caught_up, WAIT_S), cluster.log()
    cancel(target)
    assert [holder_of(target.lake, table) for table in target.tables] == [None, None]
    # the cluster is there for this job, and ends with it
    assert second.wait(WAIT_S) == 0, cluster.log()
    feed.assert_exact()

    feed.commit()
    assert cluster.run(*tiles, "--bounded").wait(WAIT_S) == 0, cluster.log()
    assert [holder_of(target.lake, table) for table in target.tables] == [None, None]
    feed.assert_exact()


def test_an_iteration_runs_inside_the_job_manager(
    project: Project, cluster: ApplicationCluster, tmp_path: Path
) -> None:
    program = project.root / "halve_it.py"
    program.write_text(PROGRAM)
    output = tmp_path / "outputs"
    done = cluster.run(
        *("iterate", f"{program}:build", "--mode", "thread", "--wire", "memory"),
        *("--parallelism", "1", "--output", str(output)),
    )
    assert done.wait(WAIT_S) == 0, cluster.log()
    # 64 / 2**10 is the first that is at most 0.1
    assert FileOutput(output / "model").read() == [[0.0625]]
