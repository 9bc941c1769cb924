"""A project with events, tiles of the local engine and an online store, without Java."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from paimon_features.cli import cli
from paimon_features.core.process.ports import free_ports
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import read_arrow
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.project import Project
from tests.shop_projects import SHOP

FEATURES = """
import paimon_features as pf

sales = pf.EventSource(
    "sales",
    schema={"customer_id": pf.Int64, "country": pf.String, "amount": pf.Int64, "at_ms": pf.Int64},
    event_time="at_ms",
)
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
land = pf.Entity("land", keys={"country": pf.String})
spend = pf.FeatureView(
    "spend", source=sales, entity=customer,
    features=[pf.Sum("amount", windows=["1d", None]), pf.Count(windows=["30d", None])],
)
pair = pf.Entity("pair", keys={"country": pf.String, "customer_id": pf.Int64})
pairs = pf.FeatureView(
    "pairs", source=sales, entity=pair,
    features=[pf.Count(windows=[None]), pf.Max("amount", windows=["30d"])],
)
lands = pf.FeatureView(
    "lands", source=sales, entity=land,
    features=[pf.Sum("amount", windows=[None]), pf.Count(windows=[None])],
)
"""


class Shop:
    """A project whose commands run in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # noon of yesterday: no event is near the edge of a day or a tile
        self.now_ms = now_ms() // DAY_MS * DAY_MS - DAY_MS // 2

    @property
    def project(self) -> Project:
        """The project, opened again."""
        return Project.open(self.folder)

    def newest_ms(self) -> int:
        """The time from which those of ``SALES`` are counted."""
        times = read_arrow(self.project.lake, "events_sales", ["at_ms"]).column("at_ms")
        return max(times.to_pylist()) + 1_000

    def run(self, *arguments: str, code: int = 0) -> Result:
        """Run a command; its exit code is checked."""
        return self.run_plain(*arguments, "--project", str(self.folder), code=code)

    def run_plain(self, *arguments: str, code: int = 0) -> Result:
        """Run a command that is of no project."""
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The JSON document of a command."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def sell(
        self, sales: Sequence[tuple[int | None, str, int, int]], source: str = "sales"
    ) -> None:
        """Write events (customer, country, amount, time in ms from now) as an ingest does."""
        project = self.project
        rows = pa.table(
            {
                "customer_id": pa.array([s[0] for s in sales], pa.int64()),
                "country": [s[1] for s in sales],
                "amount": [s[2] for s in sales],
                "at_ms": [self.now_ms + s[3] for s in sales],
            }
        )
        with acquire(project.lake, f"events_{source}"):
            writer = EventWriter.of(
                project.lake, project.definitions.sources[source], lambda: self.now_ms
            )
            writer.write(rows)


SALES = (
    (1, "FR", 10, -3 * DAY_MS),
    (2, "FR", 20, -3 * DAY_MS),
    (2, "DE", 21, -HOUR_MS),
    (3, "DE", 30, -HOUR_MS),
    (1, "DE", 11, -1_000),
    (1, "DE", 2**62 + 5, -2_000),
    (2, "DE", 2**62 + 6, -2_000),
    (None, "DE", 5, -1_000),
    (1, "FR", 99, 9 * DAY_MS),
    (3, "FR", 98, 99 * DAY_MS),
)
"""Two days; two events beyond the bound of sums, one without a customer, two held ones."""


@pytest.fixture(scope="session")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with ``SALES`` and their tiles; only to be copied, as a warehouse can be."""
    folder = tmp_path_factory.mktemp("computed") / "shop"
    write_project(folder)
    shop = Shop(folder)
    shop.run("apply")
    shop.sell(SALES)
    for view in ("spend", "lands", "pairs"):
        shop.run("backfill", view)
    return folder


def write_project(folder: Path) -> None:
    """The files of the project, not applied."""
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    (folder / "paimon-features.toml").write_text(SHOP)


@pytest.fixture
def shop(tmp_path: Path, computed: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A copy of the computed project. Nothing listens at the address of its online store."""
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", f"redis://127.0.0.1:{free_ports(1)[0]}/0")
    shutil.copytree(computed, tmp_path / "shop")
    shop = Shop(tmp_path / "shop")
    shop.now_ms = max(shop.newest_ms(), 1)
    return shop


@pytest.fixture
def served(shop: Shop, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The same with an online store that has all tiles."""
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    shop.run("materialize")
    return shop
