"""A statistics view on Flink: the one-entity tile job against the oracle and a fit on the events.

::

    events   |--- two commits ---|  DuckDB  |--- one more ---| Flink  |--- tampered ---| repair
    version                         v1                            v2                   finds it
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from paimon_features.lake import append_arrow, read_arrow
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.flink.repair import repair
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as local_backfill
from paimon_features.transformers import MinMaxScaler, StandardScaler
from tests.commands import run
from tests.flink.feed import Purchases
from tests.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)

pytestmark = pytest.mark.flink

STATISTICS = """
statistics = pf.statistics_view("statistics", retail, [
    pf.Numbers("quantity", edges=[0, 1, 5, 1000]), pf.Numbers("cents"),
    pf.Categories("country", ["France", ""])],
    derive={"cents": "quantity * 25"}, where="quantity < 1001")
"""


@pytest.fixture
def features(features: str) -> str:
    return features + STATISTICS


def members(events: pa.Table) -> pa.Table:
    """The accepted events: quantity below 1001, time not null."""
    rows = [
        {**row, "cents": row["quantity"] * 25}
        for row in events.to_pylist()
        if row["quantity"] is not None
        and row["quantity"] < 1001
        and row["at_ms"] is not None
        and abs(row["at_ms"]) < 2**61
    ]
    return pa.Table.from_pylist(rows)


def test_batch_and_stream_fit_the_same_statistics_as_the_events(
    project: Project, purchases: Purchases
) -> None:
    view = project.definitions.view("statistics")
    target = TileTarget.of(project, "statistics")
    events = purchases(1, 300)

    def assert_right(seen: pa.Table, version: int) -> None:
        rows = event_rows(seen)
        assert wrong_tiles(target.lake, view, target.tables[0], rows) == []
        assert counted_skips(target.lake, target.tables[1]) == expected_skips(view, rows)
        made = run("fit", "standard_scaler", "--view", "statistics", "--columns",
                   "quantity,cents", "--from", "tiles", "--name", "scaler", "--json",
                   project=project.root)  # fmt: skip
        assert json.loads(made.stdout)["version"] == version
        found = project.fitted.load("scaler").transformer
        assert isinstance(found, StandardScaler)
        expected = StandardScaler().fit(members(seen).select(["quantity", "cents"]))
        assert found.n_samples_seen_.tolist() == expected.n_samples_seen_.tolist()
        assert found.mean_ == pytest.approx(expected.mean_, rel=1e-14)
        assert found.var_ == pytest.approx(expected.var_, rel=1e-12)

    append_events(target.lake, view, events.slice(0, 100))
    append_events(target.lake, view, events.slice(100, 100))
    local_backfill.backfill(target)
    assert_right(events.slice(0, 200), 1)
    append_events(target.lake, view, events.slice(200))
    assert submit(target, bounded=True).state == "STOPPED"
    assert_right(events, 2)

    cut = 15_046 * 86_400_000 + 2 * 3_600_000 + 77
    run("fit", "min_max_scaler", "--view", "statistics", "--columns", "quantity",
        "--as-of", str(cut), "--name", "range", project=project.root)  # fmt: skip
    before = [row for row in members(events).to_pylist() if row["at_ms"] < cut]
    expected = MinMaxScaler().fit([[row["quantity"]] for row in before])
    expected.names = ("quantity",)
    assert project.fitted.load("range").transformer == expected

    assert repair(target, -400, 20_000).ok
    tiles = read_arrow(target.lake, target.tables[0])
    append_arrow(
        target.lake, target.tables[0], tiles.slice(0, 3),
        commit_user=f"{target.record().commit_user}_mistake", commit_identifier=BATCH_IDENTIFIER,
    )  # fmt: skip
    assert not repair(target, -400, 20_000).ok
