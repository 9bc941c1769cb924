"""The loop with a warehouse on S3 and no shared folder; ``make chaos``: all of it, with a kill."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.flink.checkpoints import find_checkpoints
from paimon_features.lake import latest_snapshot, read_arrow
from paimon_features.lake.ownership import lease
from paimon_features.project import Project
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.s3_shop import S3Shop, s3_shop
from tests.tile_jobs import wrong_tiles

pytestmark = pytest.mark.flink

ROOT = Path(__file__).parents[2]
NOW_MS = 1_700_000_000_000
FEATURES = """
import paimon_features as pf

retail = pf.EventSource(
    "retail",
    schema={"customer_id": pf.Int64, "amount": pf.Int64, "at_ms": pf.Int64},
    event_time="at_ms",
)
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView(
    "spend",
    source=retail,
    entity=customer,
    features=[pf.Sum("amount", windows=["1d", None], bound=1000), pf.Count(windows=["1d"])],
)
churn = pf.FeatureService("churn", [spend])
"""


@pytest.fixture
def shop(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Shop]:
    with s3_shop(tmp_path / "shop", FEATURES, redis_url, monkeypatch) as shop:
        yield shop


def events(first: int, count: int) -> list[dict[str, int]]:
    """Events of five customers, one a minute."""
    return [
        {"customer_id": n % 5, "amount": n % 97, "at_ms": NOW_MS - 86_400_000 + n * 60_000}
        for n in range(first, first + count)
    ]


def write(path: Path, rows: list[dict[str, int]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.mark.long
def test_files_become_lookups_on_s3(shop: S3Shop, tmp_path: Path) -> None:
    rows = events(0, 400)
    found = shop.run(
        ["apply"],
        ["ingest", "files", "retail", write(tmp_path / "events.csv", rows)],
        ["submit", "spend", "--bounded"],
        ["materialize"],
        ["lookup", "churn", "--entity", "customer_id=0,3", "--as-of", str(NOW_MS), "--json"],
        ["check"],
    )
    project = Project.open(shop.folder)
    target = TileTarget.of(project, "spend")
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], rows) == []
    sums = [sum(row["amount"] for row in rows if row["customer_id"] == key) for key in (0, 3)]
    assert _numbers(json.loads(found[4])) >= {*sums, 80}
    assert lease.holders(project.lake) == []
    assert not list(tmp_path.rglob("_paimon_features"))


@part_of_chaos("a minute")
def test_the_loop_is_exact_on_s3_also_after_a_kill(shop: S3Shop, tmp_path: Path) -> None:
    first, second = events(0, 400), events(400, 300)
    files = [write(tmp_path / f"{n}.csv", rows) for n, rows in enumerate((first, second))]
    # ingest, then a job that is killed after it has committed
    job = shop.start([["apply"], ["ingest", "files", "retail", files[0]], ["submit", "spend"]])
    project = Project.open(shop.folder)
    try:
        target = _await_commit(project, job)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
    assert shop.store.secret not in output
    assert target.checkpoint_folder.is_dir()

    rows = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"customer_id": [0, 1, 2, 3, 4, 9], "event_time_ms": [NOW_MS] * 6}), rows
    )
    output = tmp_path / "history.parquet"
    found = shop.run(
        ["ingest", "files", "retail", files[0]],  # each file once
        ["ingest", "files", "retail", files[1]],
        ["submit", "spend", "--bounded"],
        ["materialize"],
        ["lookup", "churn", "--entity", "customer_id=0,3", "--as-of", str(NOW_MS), "--json"],
        ["training-set", "--service", "churn", "--rows", str(rows), "--output", str(output)],
        ["training-set", "churn", "--service", "churn", "--rows", str(rows)],
        ["verify", "churn", "--sample", "5", "--times", "2"],
        ["maintain", "tiles_spend_g1", "--keep-newest", "2"],
        ["materialize"],
        ["check"],
    )

    # the tiles, by the oracle
    everything = [*first, *second]
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], everything) == []
    assert read_arrow(project.lake, "events_retail").num_rows == 700
    # features, by hand
    sums = {
        key: sum(row["amount"] for row in everything if row["customer_id"] == key)
        for key in range(5)
    }
    counts = dict.fromkeys(range(5), 140)
    history = {row["customer_id"]: row for row in pq.read_table(output).to_pylist()}
    training = read_arrow(project.lake, "training_churn").to_pylist()
    assert {row["customer_id"]: row for row in training} == history
    for key in range(5):
        assert history[key]["sum_amount"] == history[key]["sum_amount_1d"] == sums[key]
        assert history[key]["count_1d"] == counts[key]
    looked_up = json.loads(found[4])
    assert _numbers(looked_up) >= {sums[0], sums[3], 140}
    # nobody owns a table any more, and nothing was written beside the store
    assert lease.holders(project.lake) == []
    assert not list(tmp_path.rglob("_paimon_features"))


def _await_commit(project: Project, job: subprocess.Popen[str]) -> TileTarget:
    """Wait until the job has a checkpoint that covers what it has committed."""
    deadline = time.monotonic() + 240
    target = None
    while time.monotonic() < deadline:
        assert job.poll() is None, job.communicate()[0]
        try:
            target = target or TileTarget.of(project, "spend")
            if latest_snapshot(project.lake, target.tables[0]) is not None and list(
                find_checkpoints(target.checkpoint_folder)
            ):
                return target
        except Exception as error:  # not applied yet
            print(error)
        time.sleep(0.5)
    raise AssertionError("the job has committed nothing")


def _numbers(document: Any) -> set[float]:
    """All numbers in a JSON document."""
    if isinstance(document, dict):
        return set().union(*map(_numbers, document.values())) if document else set()
    if isinstance(document, list):
        return set().union(*map(_numbers, document)) if document else set()
    return {document} if isinstance(document, (int, float)) else set()
