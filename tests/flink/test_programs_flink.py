"""The programs run by ``flink run -py`` on a session cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.lake import read_arrow
from paimon_features.project import Project
from paimon_features.project.programs import program
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.jobs.jobs import job_state
from paimon_features.tiles.jobs.target import TileTarget
from tests.flink.feed import Feed
from tests.flink.session_cluster import SessionCluster
from tests.tile_jobs import counted_skips, expected_skips, wrong_tiles

pytestmark = pytest.mark.flink

ROOT = Path(__file__).parents[2]


def flink_run(cluster: SessionCluster, name: str, *arguments: str) -> dict[str, Any]:
    """Run a program to its end and return the last document that it prints."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paimon_features.flink", "run", "-m", cluster.address),
            *("-py", str(program(name)), *arguments),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    document: dict[str, Any] = json.loads(lines[-1])
    return document


@pytest.mark.long
def test_files_are_ingested_and_tiled_exactly_once(
    project: Project,
    target: TileTarget,
    feed: Feed,
    session_cluster: SessionCluster,
    tmp_path: Path,
) -> None:
    events = feed.make(0, 60)
    pq.write_table(events, tmp_path / "events.parquet")
    ingested = flink_run(
        session_cluster,
        "ingest",
        *("--project", str(project.root), "--source", "retail", str(tmp_path / "events.parquet")),
    )
    rejected = sum(ingested["rejected"].values())
    assert ingested["rows"] + rejected == events.num_rows

    done = flink_run(
        session_cluster,
        "tiles",
        *("--project", str(project.root), "--view", "spend", "--bounded"),
    )
    assert done["state"] == "STOPPED"
    job = target.record().job or {}
    assert (job["rest"], job["local"]) == (session_cluster.address, False)
    assert job_state(target.lake, target.record()) == "STOPPED"
    rows = event_rows(read_arrow(target.lake, target.events))
    tiles, skipped = target.tables
    assert wrong_tiles(target.lake, feed.view, tiles, rows) == []
    assert counted_skips(target.lake, skipped) == expected_skips(feed.view, rows)
    known = [one.id for one in FlinkRest(session_cluster.address).jobs()]
    assert done["job_id"] in known
