"""Tile jobs on a session cluster: they outlive their client, and a second one is rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paimon_features.core.errors import JobError, OwnershipError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.flink.cluster import ClusterRecord, ClusterShape, LocalCluster
from paimon_features.lake.ownership.lease import FlinkJobHolder, holder_of
from paimon_features.project import Project
from paimon_features.project.maintenance.tables import maintain
from paimon_features.tiles.flink.job_runner import JobRunner
from paimon_features.tiles.flink.submission import backfill, submit
from paimon_features.tiles.jobs.jobs import cancel, job_state, list_jobs
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.feed import Feed

pytestmark = [
    pytest.mark.flink,
    part_of_chaos("test_cluster_flink resumes a detached job"),
]


@pytest.fixture
def cluster(target: TileTarget) -> Iterator[ClusterRecord]:
    """A small cluster of the project."""
    local = LocalCluster(target.state_dir)
    try:
        yield local.start(ClusterShape(slots=4, task_manager_mb=1024, job_manager_mb=768))
    finally:
        local.stop()


def lose_the_reply(*_: object) -> None:
    raise JobError("the cluster does not respond: timed out")


def test_a_detached_job_is_exclusive_resumable_and_survives_its_cluster(
    project: Project,
    target: TileTarget,
    feed: Feed,
    cluster: ClusterRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    #  backfill + submit + maintain + cancel  submit (its client dies) + the cluster dies  submit
    feed.commit()
    assert backfill(target, cluster=cluster.address).state == "STOPPED"
    feed.commit()
    first = submit(target, cluster=cluster.address)
    assert first.state == "RUNNING"
    assert first.job_id is not None
    (row,) = list_jobs(project.lake)
    assert (row.state, row.where, row.job_id) == ("RUNNING", cluster.address, first.job_id)
    holders = [holder_of(target.lake, table) for table in target.tables]
    process = LocalCluster(target.state_dir).process_of(cluster.address)
    job = FlinkJobHolder(f"http://{cluster.address}", first.job_id, process)
    assert [held and held.holder for held in holders] == [job, job]
    with pytest.raises(OwnershipError, match=f"Flink job {first.job_id}"):
        submit(target)

    (left_out,) = maintain(project, target.tables[:1])
    assert f"Flink job {first.job_id}" in str(left_out.skipped)
    feed.commit()
    assert not any(done.skipped for done in maintain(project, target.tables, pause=True))
    (row,) = list_jobs(project.lake)
    assert (row.state, row.where) == ("RUNNING", cluster.address)
    assert row.job_id != first.job_id

    rest = FlinkRest(cluster.address)
    with monkeypatch.context() as patched:
        patched.setattr(FlinkRest, "_await_end", lose_the_reply)
        savepoint = cancel(target)
    assert rest.ended(row.job_id)
    assert target.record().resume_path == savepoint
    assert job_state(target.lake, target.record()) == "STOPPED"
    feed.commit()
    with monkeypatch.context() as patched:
        patched.setattr(
            JobRunner, "hand_over", lambda *_: exit("killed before the leases are handed")
        )
        with pytest.raises(SystemExit):
            submit(target, cluster=cluster.address, resume=True)
    (row,) = list_jobs(project.lake)
    assert row.state == "RUNNING"
    with pytest.raises(OwnershipError, match=f"has a job, {row.job_id} .* which is RUNNING"):
        submit(target)

    LocalCluster(target.state_dir).stop()
    assert job_state(target.lake, target.record()) == "LOST"
    feed.commit()
    assert submit(target, bounded=True).resumed is not None
    feed.assert_exact()
