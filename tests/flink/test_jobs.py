"""The state of a job on an unreachable cluster, without Flink."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import JobError, OwnershipError, UnknownNameError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.lake.ownership.lease import FlinkJobHolder, ProcessHolder, acquire, holder_of
from paimon_features.project import Project
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel, job_state, list_jobs
from paimon_features.tiles.jobs.target import TileTarget

NOWHERE = "127.0.0.1:9"
JOB_ID = "a" * 32


def recorded(target: TileTarget, process: ProcessHolder | None) -> dict[str, Any]:
    """A stream of the view as recorded, on an unreachable cluster."""
    return {
        "kind": "stream",
        "job_id": JOB_ID,
        "events": target.events,
        "rest": NOWHERE,
        "local": False,
        "process": None if process is None else asdict(process),
        "since_ms": 1_300_000_000_000,
        "branch": [[JOB_ID, None]],
    }


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[bytes]]:
    """A process that represents a cluster."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        with suppress(ProcessLookupError):
            process.kill()


def test_a_job_that_was_never_started_is_not_listed(project: Project, target: TileTarget) -> None:
    assert job_state(target.lake, target.record()) is None
    assert list_jobs(project.lake) == []
    with pytest.raises(UnknownNameError, match="none was started yet"):
        cancel(target)


def test_a_job_is_lost_if_the_process_of_its_cluster_has_ended(
    target: TileTarget, cluster: subprocess.Popen[bytes]
) -> None:
    target.update(job=recorded(target, ProcessHolder.of(cluster.pid)))
    assert job_state(target.lake, target.record()) == "UNKNOWN"
    cluster.kill()
    cluster.wait()
    assert job_state(target.lake, target.record()) == "LOST"


def test_a_job_on_an_unreachable_cluster_owns_its_tables_until_released(
    project: Project, target: TileTarget
) -> None:
    target.update(job=recorded(target, None))
    acquire(target.lake, target.tables[0], FlinkJobHolder(FlinkRest(NOWHERE).url, JOB_ID))
    with pytest.raises(OwnershipError, match=f"jobs --release {target.tables[0]}"):
        submit(target, bounded=True)
    with pytest.raises(JobError, match="does not answer"):
        cancel(target)

    reported = CliRunner().invoke(
        cli, ["jobs", "--release", target.tables[0], "--project", str(project.root)]
    )

    assert reported.exit_code == 0, reported.output
    assert f"Flink job {JOB_ID} at http://{NOWHERE} no longer holds it" in reported.output
    assert holder_of(target.lake, target.tables[0]) is None
    assert job_state(target.lake, target.record()) == "LOST"
    again = CliRunner().invoke(
        cli, ["jobs", "--release", target.tables[0], "--json", "--project", str(project.root)]
    )
    assert "it was not held" in again.stderr
    assert '"state": "LOST"' in again.stdout


def test_a_recorded_job_owns_its_tables_even_without_a_lease_handover(
    target: TileTarget,
) -> None:
    # its client was killed between the two steps
    target.update(job=recorded(target, None))
    with pytest.raises(OwnershipError, match="which is UNKNOWN"):
        submit(target, bounded=True)


def test_only_existing_tables_can_be_released(project: Project) -> None:
    reported = CliRunner().invoke(
        cli, ["jobs", "--release", "tiles", "--project", str(project.root)]
    )
    assert reported.exit_code == 2
    assert "tiles_spend_g1" in reported.output
