"""Application mode: Flink's own entry point runs the programs, without a client process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.core.process.waiting import wait_until
from paimon_features.iteration.flink.outputs import FileOutput
from paimon_features.lake.ownership.lease import FlinkJobHolder, holder_of
from paimon_features.project import Project
from paimon_features.tiles.jobs.jobs import cancel, lag_snapshots
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.application_cluster import ROOT, WAIT_S, ApplicationCluster
from tests.flink.feed import Feed
from tests.flink.iteration.halving_program import PROGRAM

pytestmark = [pytest.mark.flink, pytest.mark.timeout(600)]

JOB_ID = "ab" * 16


@pytest.fixture
def cluster(project: Project, tmp_path: Path) -> Iterator[ApplicationCluster]:
    started = ApplicationCluster(project.root, tmp_path / "logs")
    try:
        yield started
    finally:
        started.stop()


@pytest.mark.long
def test_a_bounded_tile_job_ends_with_its_cluster_and_is_exact(
    target: TileTarget, feed: Feed, cluster: ApplicationCluster
) -> None:
    feed.commit()
    done = cluster.run("tiles", "--view", "spend", "--parallelism", "1", "--bounded")
    assert done.wait(WAIT_S) == 0, cluster.log()
    assert [holder_of(target.lake, table) for table in target.tables] == [None, None]
    feed.assert_exact()


@part_of_chaos("a task manager notices the end of its job manager after a minute")
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
    alerts = (ROOT / "docker/alerts.yml").read_text()
    assert set(re.findall(r"flink_\w+", alerts)) <= cluster.metrics()
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


@part_of_chaos("a bounded tile job does")
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
