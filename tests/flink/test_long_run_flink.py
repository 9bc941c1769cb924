"""Weeks of checkpoints at speed, with maintenance beside them: exact, and nothing grows.

``make chaos`` runs 2,000 checkpoints; PAIMON_FEATURES_CHECKPOINTS=20000 is a week of one each half
a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.lake import latest_snapshot
from paimon_features.project import Project
from paimon_features.project.maintenance.tables import size_of
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel, lag_snapshots
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.feed import Feed
from tests.servers.online_servers import send_command
from tests.serving.chaos.processes import Follower, resident_mb

pytestmark = [
    pytest.mark.flink,
    pytest.mark.redis,
    pytest.mark.timeout(0),
    part_of_chaos("thousands of checkpoints"),
]

ROOT = Path(__file__).parents[2]
TOUCHED = "-XX:+AlwaysPreTouch"
"""The Java heap is resident from the start: what grows then is outside of it, and outside of the
limits that Flink computes. Without it a heap fills up for minutes, to its configured size."""
SAMPLES = 12
"""Maintenance runs so often; what is there is measured before each."""


def maintain(project: Project) -> None:
    """Maintenance as a schedule runs it: the job stops with a savepoint and resumes."""
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features", "maintain", "--pause", "--keep-newest", "20"],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def flat(samples: list[dict[str, float]], name: str, slack: float) -> bool:
    """Whether the last third of the samples is no higher than the third before it."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[-third:]
    return max(s[name] for s in last) <= 1.1 * max(s[name] for s in middle) + slack


def test_thousands_of_checkpoints_leave_no_more_than_a_hundred(
    project: Project,
    target: TileTarget,
    feed: Feed,
    redis_url: str,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = int(os.environ.get("PAIMON_FEATURES_CHECKPOINTS", "2000"))
    settings = project.root / "paimon-features.toml"
    settings.write_text(
        settings.read_text().replace('"300ms"', '"100ms"') + f'[online]\nurl = "{redis_url}"\n'
    )
    project = Project.open(project.root)
    feed.target = target = TileTarget.of(project, "spend")
    cluster = LocalCluster(project.config.state_dir)
    with monkeypatch.context() as context:
        context.setenv("JVM_ARGS", f"{os.environ.get('JVM_ARGS', '')} {TOUCHED}")
        record = cluster.start(ClusterShape(slots=4, task_manager_mb=1200, job_manager_mb=800))
    samples: list[dict[str, float]] = []
    try:
        feed.commit()
        submit(target, cluster=record.address)
        follower = Follower(project.root)
        try:
            for sample in range(1, SAMPLES + 1):
                while newest_checkpoint(target) < sample * checkpoints // SAMPLES:
                    feed.commit(5)
                    time.sleep(0.05)
                samples.append(
                    {"checkpoints": newest_checkpoint(target)}
                    | measured(project, target, cluster, follower, redis_server)
                )
                print(json.dumps(samples[-1]), flush=True)
                maintain(project)
            assert wait_until(
                lambda: lag_snapshots(target.lake, target.events, target.consumer) == 0, 120
            )
        finally:
            follower.stop()
        cancel(target)
    finally:
        cluster.stop()
    feed.assert_exact()
    print(table(samples))
    for name, slack in {
        "live files": 20,
        "snapshots": 100,
        "checkpoint folders": 2,
        "jobmanager MB": 30,
        "taskmanager MB": 30,
        "supervisor MB": 5,
        "materializer MB": 20,
        "Redis MB": 5,
        "in Redis MB": 0.5,
    }.items():
        assert flat(samples, name, slack), (name, samples)


def newest_checkpoint(target: TileTarget) -> int:
    """The number of the last checkpoint that committed tiles; a resumed job continues it."""
    newest = latest_snapshot(target.lake, target.tables[0])
    return 0 if newest is None or newest.commit_identifier > 2**60 else newest.commit_identifier


def measured(
    project: Project,
    target: TileTarget,
    cluster: LocalCluster,
    follower: Follower,
    redis: RedisServer,
) -> dict[str, float]:
    """What must not grow."""
    sizes = [size_of(project.lake, name) for name in (*target.tables, target.events)]
    status = cluster.status()
    by_name = {state.name: state.pid for state in status.processes}
    lines = str(send_command(redis.port, "INFO", "memory")).splitlines()
    used = next(int(line[12:]) for line in lines if line.startswith("used_memory:"))
    return {
        "live files": sum(size.live_files for size in sizes),
        "snapshots": sum(size.snapshots for size in sizes),
        "checkpoint folders": len(list(target.checkpoint_folder.glob("*/chk-*"))),
        "jobmanager MB": resident_mb(by_name["jobmanager"] or 0),
        "taskmanager MB": max(
            resident_mb(pid or 0) for name, pid in by_name.items() if name != "jobmanager"
        ),
        "supervisor MB": resident_mb(status.supervisor or 0),
        "materializer MB": resident_mb(follower.process.pid),
        "Redis MB": resident_mb(redis.pid),
        "in Redis MB": round(used / 2**20, 2),
    }


def table(samples: list[dict[str, float]]) -> str:
    """The samples, as a table in Markdown."""
    lines = [" | ".join(samples[0]), " | ".join("---:" for _ in samples[0])]
    lines += [" | ".join(f"{value:,.6g}" for value in sample.values()) for sample in samples]
    return "\n".join(f"| {line} |" for line in lines)
