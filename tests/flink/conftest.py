"""Fixtures of the Flink tests: a project with one view and its edge cases, a session cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Definitions, FeatureView
from paimon_features.lake import Lake
from paimon_features.project import Project
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.jobs.target import TileTarget
from tests.flink.feed import Feed
from tests.flink.session_cluster import SessionCluster
from tests.shop_projects import make_project

CHECKPOINT_INTERVAL_MS = 300

FEATURES = """
import paimon_features as pf

retail = pf.EventSource(
    "retail",
    schema={
        "customer_id": pf.Int64,
        "quantity": pf.Int64,
        "unit_price": pf.Float64,
        "country": pf.String,
        "at_ms": pf.Int64,
    },
    event_time="at_ms",
)
spend = pf.FeatureView(
    "spend",
    source=retail,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    derive={"amount": "quantity * unit_price"},
    where="quantity > 0",
    features=[
        pf.Sum("amount", windows=["1h", "30d"], scale=2),
        pf.Sum("quantity", windows=["1d"], bound=1000),
        pf.Mean("unit_price", windows=["1d"]),
        pf.Min("unit_price", windows=["1d"]),
        pf.Max("quantity", windows=["1d"]),
        pf.Count(windows=["7d", None]),
        pf.Last("country", windows=["7d"]),
        pf.DecayedSum("amount", half_life="1h", windows=["7d"]),
    ],
)
"""


@pytest.fixture(scope="session")
def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionCluster]:
    """One cluster for all tests of a worker. A test that stops or damages one starts its own."""
    from paimon_features.flink.cluster import ClusterShape, LocalCluster

    state_dir = tmp_path_factory.mktemp("cluster")
    local = LocalCluster(state_dir)
    shape = ClusterShape(task_managers=1, slots=4, task_manager_mb=1200, job_manager_mb=800)
    yield SessionCluster(local.start(shape).address, state_dir)
    local.stop()


@pytest.fixture
def features() -> str:
    """The text of the project's definitions."""
    return FEATURES


@pytest.fixture
def project(tmp_path: Path, features: str) -> Project:
    """A project with the view ``spend``, applied, with empty tables."""
    folder = tmp_path / "shop"
    folder.mkdir()
    return make_project(
        folder,
        features,
        f'[project]\nname = "shop"\n[flink]\ncheckpoint_interval = "{CHECKPOINT_INTERVAL_MS}ms"\n',
    )


@pytest.fixture
def spend(project: Project) -> FeatureView:
    return project.definitions.view("spend")


@pytest.fixture
def target(project: Project) -> TileTarget:
    """The first generation of ``spend``."""
    return TileTarget.of(project, "spend")


@pytest.fixture
def purchases(spend: FeatureView) -> Callable[[int, int], pa.Table]:
    """Generates events from a seed and a number of events."""

    def make(seed: int, count: int) -> pa.Table:
        """Events in random order: edges of tiles, before 1970, late by months, ties, duplicates,
        no key,
        absurd and missing times, values at their bounds and beyond."""
        rng = random.Random(seed)
        rows = []
        for _ in range(count):
            day = rng.choice((-3, 0, 15_046))
            at_ms = day * DAY_MS + rng.randrange(0, 6 * HOUR_MS, 300_000)
            at_ms += rng.choice((-1, 0, 0, 1, 12_345))
            if rng.random() < 0.1:
                at_ms -= 90 * DAY_MS
            absurd = rng.random() < 0.04
            rows.append(
                {
                    "customer_id": None if rng.random() < 0.05 else rng.choice((1, 2, -4, 2**40)),
                    "quantity": rng.choice((1, 2, 3, 7, 1000, 1001, -1, 0, None)),
                    "unit_price": rng.choice((None, 0.0, -0.0, 0.1, 2.675, 9.99, 1e290)),
                    "country": rng.choice((None, "France", "Österreich", "")),
                    "at_ms": rng.choice((None, 2**62, -(2**62))) if absurd else at_ms,
                }
            )
        rows += rng.sample(rows, count // 10)
        rng.shuffle(rows)
        return pa.Table.from_pylist(rows, schema=arrow_schema(spend.source.schema))

    return make


@pytest.fixture
def feed(target: TileTarget, spend: FeatureView, purchases: Callable[[int, int], pa.Table]) -> Feed:
    """Events for ``target``."""
    return Feed(target, spend, purchases)


@pytest.fixture
def target_of(tmp_path: Path) -> Callable[[str, FeatureView], TileTarget]:
    """Creates a separate lake with the tables of any view, in a folder of that name."""

    def make(folder: str, view: FeatureView) -> TileTarget:
        lake = Lake.open(tmp_path / folder / "lake", "features")
        apply_plan(lake, Definitions.of([view]), now_ms=0)
        flink = FlinkConfig(parallelism=2, checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS)
        return TileTarget("shop", lake, view.compiled, 1, tmp_path / folder / "state", flink)

    return make
