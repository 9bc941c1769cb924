"""The loop with a REST catalog: Flink and Python commit through its server."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.lake import read_arrow
from paimon_features.lake.ownership import lease
from paimon_features.lake.storage.rest_catalog import TOKEN_VARIABLE
from paimon_features.project import Project
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.rest_catalog_server import TOKEN, CatalogServer, catalog_server
from tests.tile_jobs import wrong_tiles

pytestmark = [pytest.mark.flink, part_of_chaos("a minute")]

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
_RUN = """
import json, sys
from click.testing import CliRunner
from paimon_features.cli import cli
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(cli, arguments)
    if result.exit_code and result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    print(json.dumps([result.exit_code, result.output]), flush=True)
"""


@dataclass
class Shop:
    """A project with a catalog, and its commands in processes of their own."""

    folder: Path
    server: CatalogServer

    def run(self, *commands: Sequence[str]) -> list[str]:
        """The output of each command, which must succeed and not contain the token."""
        given = json.dumps([[*command, "--project", str(self.folder)] for command in commands])
        done = subprocess.run(
            [sys.executable, "-c", _RUN, given],
            env={**os.environ, TOKEN_VARIABLE: TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for command, (code, text) in zip(commands, results, strict=False):
            assert code == 0, f"{command}: {text}"
        assert len(results) == len(commands), done.stdout
        assert TOKEN not in done.stdout
        return [text for _, text in results]


@pytest.fixture
def shop(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with catalog_server(folder / "lake") as server:
        (folder / "paimon-features.toml").write_text(
            '[project]\nname = "shop"\n'
            f'[lake.catalog]\nuri = "{server.settings.uri}"\nwarehouse = "shop"\n'
            f'[online]\nurl = "{redis_url}"\n'
            '[flink]\nparallelism = 1\ncheckpoint_interval = "500ms"\n'
        )
        yield Shop(folder, server)


def test_the_loop_is_exact_with_a_rest_catalog(shop: Shop, tmp_path: Path) -> None:
    everything = [
        {"customer_id": n % 5, "amount": n % 97, "at_ms": NOW_MS - 86_400_000 + n * 60_000}
        for n in range(700)
    ]
    files = [tmp_path / "0.csv", tmp_path / "1.csv"]
    for path, rows in zip(files, (everything[:400], everything[400:]), strict=True):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, everything[0])
            writer.writeheader()
            writer.writerows(rows)
    wanted = tmp_path / "rows.parquet"
    times = {"customer_id": [0, 1, 2, 3, 4, 9], "event_time_ms": [NOW_MS] * 6}
    pq.write_table(pa.table(times), wanted)
    output = tmp_path / "history.parquet"
    both = ["--service", "churn", "--rows", str(wanted)]
    shop.run(
        ["apply"],
        ["ingest", "files", "retail", str(files[0])],
        ["backfill", "spend"],
        ["backfill", "spend", "--rebuild", "--engine", "local"],
        ["ingest", "files", "retail", str(files[1]), "--engine", "local"],
        ["submit", "spend", "--bounded"],
        ["materialize"],
        ["lookup", "churn", "--entity", "customer_id=0,3", "--as-of", str(NOW_MS), "--json"],
        ["training-set", *both, "--output", str(output)],
        ["training-set", *both, "--output", str(tmp_path / "flink.parquet"), "--engine", "flink"],
        ["training-set", "churn", "--service", "churn", "--rows", str(wanted)],
        ["verify", "churn", "--sample", "5", "--times", "2"],
        ["maintain", "tiles_spend_g1", "--keep-newest", "2"],
        ["check"],
    )
    project = Project.open(shop.folder)
    target = TileTarget.of(project, "spend")
    view = project.definitions.view("spend")
    assert wrong_tiles(project.lake, view, target.tables[0], everything) == []
    assert read_arrow(project.lake, "events_retail").num_rows == 700
    history = {row["customer_id"]: row for row in pq.read_table(output).to_pylist()}
    training = read_arrow(project.lake, "training_churn").to_pylist()
    assert {row["customer_id"]: row for row in training} == history
    for key in range(5):
        amounts = [row["amount"] for row in everything if row["customer_id"] == key]
        assert history[key]["sum_amount"] == sum(amounts)
        assert history[key]["count_1d"] == len(amounts)
    assert lease.holders(project.lake) == []
    # the server knows what the project has, no more and no less
    shop.run(["drop", "training-set", "churn", "--yes"])
    tables = shop.server.tables("features")
    assert tables == project.lake.list()
    assert "training_churn" not in tables
