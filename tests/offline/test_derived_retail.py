"""Derived views of the retail log, compared with SQL over its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import paimon_features as pf
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import DerivedView
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import events_spec
from paimon_features.offline.derived_rows import DerivedRead
from paimon_features.tiles.partitioning import tiles_table
from paimon_features.tiles.tile_comparison import compare_day

pytestmark = pytest.mark.long

LOG = Path(__file__).parents[2] / "examples" / "retail" / "data" / "online_retail.parquet"

RETAIL = pf.EventSource(
    "retail",
    schema={
        "customer_id": pf.Int64,
        "invoice_time_ms": pf.Int64,
        "quantity": pf.Int64,
        "unit_price": pf.Float64,
    },
    event_time="invoice_time_ms",
)
SPEND = pf.FeatureView(
    "spend",
    source=RETAIL,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    derive={"amount": "quantity * unit_price"},
    features=[
        pf.Count(windows=["7d"]),
        pf.Sum("amount", windows=["30d"], scale=2),
        pf.Max("quantity", windows=["30d"]),
        pf.TimeSinceFirst(windows=["30d"]),
    ],
    time_zone="Europe/London",
)
FEATURES = [pf.Count(), pf.Sum("amount", scale=2), pf.Max("quantity")]

VALUES = """count(*) AS n, sum(CAST(round_even(quantity * unit_price * 100, 0) AS HUGEINT)) / 100.0
    AS amount, max(quantity) AS most"""
TUMBLING = f"""
SELECT customer_id, s, e, {VALUES}
FROM (SELECT *, {{start}} AS s, {{end}} AS e FROM log WHERE customer_id IS NOT NULL)
GROUP BY customer_id, s, e HAVING e <= (SELECT max(t) FROM log WHERE customer_id IS NOT NULL)
ORDER BY s, customer_id
"""
SESSIONS = f"""
WITH gaps AS (
    SELECT *, coalesce(t - lag(t) OVER w >= {{gap}}, TRUE) AS begins
    FROM log WHERE customer_id IS NOT NULL WINDOW w AS (PARTITION BY customer_id ORDER BY t)
),
numbered AS (
    SELECT *, sum(CAST(begins AS INT)) OVER (PARTITION BY customer_id ORDER BY t) AS session
    FROM gaps
)
SELECT customer_id, min(t) AS s, max(t) + {{gap}} AS e, count(*) AS events, {VALUES}
FROM numbered GROUP BY customer_id, session
HAVING e <= (SELECT max(t) FROM log WHERE customer_id IS NOT NULL)
ORDER BY s, customer_id
"""


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return pq.read_table(LOG, columns=list(RETAIL.schema))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, log: pa.Table) -> Lake:
    """The log as events, and the tiles that they make."""
    lake = Lake.open(tmp_path_factory.mktemp("retail"), "features")
    view = SPEND.compiled
    lake.create(events_spec(RETAIL.table, RETAIL.schema))
    lake.create(tiles_table(view, 1))
    days = pc.divide(log["invoice_time_ms"], DAY_MS).cast(pa.int32())
    snapshot = append_arrow(lake, RETAIL.table, log.append_column("event_day", days))
    tiles = [
        compare_day(lake, view, view.table(1), day, snapshot, None).tiles
        for day in sorted(set(days.to_pylist()))
    ]
    append_arrow(lake, view.table(1), pa.concat_tables(tiles))
    return lake


def rows_of(lake: Lake, derived: DerivedView) -> list[tuple[Any, ...]]:
    view = SPEND.compiled
    record = GenerationRecord(view.name, 1, view.table(1), view.fingerprint, view.buckets)
    found = DerivedRead(lake, derived.compiled, record).table()
    return list(zip(*found.to_pydict().values(), strict=True))


def requested(log: pa.Table, query: str, **parts: object) -> list[tuple[Any, ...]]:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("raw", log)
        engine.execute("CREATE VIEW log AS SELECT *, invoice_time_ms AS t FROM raw")
        return engine.execute(query.format(**parts)).fetchall()


@pytest.mark.parametrize(("size", "ms"), [("1h", 3_600_000), ("1d", DAY_MS), ("7d", 7 * DAY_MS)])
def test_tumbling_rows_of_the_log_equal_group_by(
    lake: Lake, log: pa.Table, size: str, ms: int
) -> None:
    start = f"t // {ms} * {ms}"
    expected = requested(log, TUMBLING, start=start, end=f"{start} + {ms}")
    assert len(expected) > 1000
    assert rows_of(lake, pf.TumblingView("d", SPEND, size, features=FEATURES)) == expected


@pytest.mark.parametrize("size", ["day", "week", "month"])
def test_calendar_rows_of_the_log_equal_date_trunc(lake: Lake, log: pa.Table, size: str) -> None:
    begin = f"date_trunc('{size}', timezone('Europe/London', make_timestamptz(t * 1000)))"
    bounds = {
        name: f"epoch_ms(timezone('Europe/London', CAST({local} AS TIMESTAMP)))"
        for name, local in (("start", begin), ("end", f"{begin} + INTERVAL 1 {size}"))
    }
    expected = requested(log, TUMBLING, **bounds)
    assert len(expected) > 1000
    assert rows_of(lake, pf.TumblingView("d", SPEND, size, features=FEATURES)) == expected


@pytest.mark.parametrize(("gap", "ms"), [("5min", 300_000), ("1h", 3_600_000), ("2d", 2 * DAY_MS)])
def test_sessions_of_the_log_equal_window_functions(
    lake: Lake, log: pa.Table, gap: str, ms: int
) -> None:
    expected = requested(log, SESSIONS, gap=ms)
    assert len(expected) > 1000
    assert rows_of(lake, pf.SessionView("s", SPEND, gap, features=FEATURES)) == expected
