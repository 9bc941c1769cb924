"""One session cluster for all tests of iterations that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class SessionCluster(NamedTuple):
    """A running cluster of one task manager with four slots."""

    address: str
    state_dir: Path


@pytest.fixture(scope="package")
def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionCluster]:
    """Ends with the last test of this package."""
    from paimon_features.flink.cluster import ClusterShape, LocalCluster

    state_dir = tmp_path_factory.mktemp("cluster")
    local = LocalCluster(state_dir)
    shape = ClusterShape(task_managers=1, slots=4, task_manager_mb=1200, job_manager_mb=800)
    yield SessionCluster(local.start(shape).address, state_dir)
    local.stop()
