"""The point-in-time join beside DuckDB on the same raw events, all of them on one core.

A million rows (customer, time) ask for the sum and the number of a customer's purchases in
windows before that time. Ours reads tiles and events from the lake, end to end; DuckDB has the
events in memory, in a table of its own, and answers once by a range join and once by prefix
sums with an ASOF join at the end and at the start of each window. All have to give equal
numbers. They take turns; the figures are medians, and ratios within this run.

    python -m benchmarks.point_in_time --events online_retail.parquet --rows 1000000

``--events`` is a Parquet file with the columns of the UCI "Online Retail" log; without it a log
of the same shape is generated.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.aggregates import Count, Sum
from paimon_features.aggregates.fold import fold
from paimon_features.columns import Column
from paimon_features.definitions import CompiledView, Entity, EventSource, FeatureRef, FeatureView
from paimon_features.offline.heads import enters, partials_of
from paimon_features.offline.store import OfflineStore
from paimon_features.schema import Float64, Int64, arrow_schema
from paimon_features.tables import Lake, append_arrow
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.specs import events_spec, tiles_spec
from paimon_features.windows import DAY_MS, MINUTE_MS, floor_ms

BUCKETS = 2
WINDOWS = ("30d", "1h", "1d", "7d", "90d")
"""Windows in the order in which ``--windows`` takes them."""

SOURCE = EventSource(
    "retail",
    schema={"customer_id": Int64, "t": Int64, "quantity": Int64, "unit_price": Float64},
    event_time="t",
)

EVENTS_SQL = """
CREATE TABLE log AS SELECT customer_id, t,
    CAST(round_even(quantity * unit_price * 100, 0) AS BIGINT) AS cents
FROM events WHERE customer_id IS NOT NULL
"""

RANGE_SQL = """
WITH asked AS (SELECT *, {starts} FROM entity_rows)
SELECT a.n, {aggregates}
FROM asked a LEFT JOIN log e
    ON e.customer_id = a.customer_id AND e.t < a.q AND e.t >= a.start_{longest}
GROUP BY a.n ORDER BY a.n
"""
RANGE_AGGREGATES = """
    coalesce(sum(e.cents) FILTER (e.t >= a.start_{w}), 0) / 100 AS sum_{w},
    count(e.t) FILTER (e.t >= a.start_{w}) AS count_{w}"""

ASOF_SQL = """
WITH asked AS (SELECT *, {starts} FROM entity_rows),
moments AS (SELECT customer_id, t, sum(cents) AS cents, count(*) AS events FROM log GROUP BY ALL),
prefix AS (
    SELECT customer_id, t,
        sum(cents) OVER so_far AS cents,
        sum(events) OVER so_far AS events
    FROM moments WINDOW so_far AS (PARTITION BY customer_id ORDER BY t)
)
SELECT a.n, {differences}
FROM asked a
ASOF LEFT JOIN prefix p ON p.customer_id = a.customer_id AND p.t < a.q
{joins}
ORDER BY a.n
"""
ASOF_DIFFERENCE = """
    (coalesce(p.cents, 0) - coalesce(p_{w}.cents, 0)) / 100 AS sum_{w},
    CAST(coalesce(p.events, 0) - coalesce(p_{w}.events, 0) AS BIGINT) AS count_{w}"""
ASOF_JOIN = """ASOF LEFT JOIN prefix p_{w}
    ON p_{w}.customer_id = a.customer_id AND p_{w}.t < a.start_{w}"""


def retail_view(windows: tuple[str, ...]) -> FeatureView:
    """What is asked for: the sum and the number of purchases."""
    return FeatureView(
        "spend",
        source=SOURCE,
        entity=Entity("customer", keys={"customer_id": Int64}),
        derive={"amount": "quantity * unit_price"},
        features=[Sum("amount", windows=windows, scale=2), Count(windows=windows)],
    )


def read_events(path: Path) -> pa.Table:
    """The retail log in the columns of the source."""
    log = pq.read_table(path, columns=["CustomerID", "InvoiceDate", "Quantity", "UnitPrice"])
    return pa.table(
        {
            "customer_id": log["CustomerID"].cast(pa.int64()),
            "t": log["InvoiceDate"].cast(pa.timestamp("ms")).cast(pa.int64()),
            "quantity": log["Quantity"],
            "unit_price": log["UnitPrice"],
        },
        schema=arrow_schema(SOURCE.schema),
    )


def generate_events(count: int, dice: np.random.Generator) -> pa.Table:
    """A log of the retail log's shape: invoices of some twenty lines at one minute, in a year."""
    invoices = count // 22
    weights = 1 / np.arange(1, 4_373) ** 0.7  # some customers come every week
    customer = 12_346 + dice.choice(len(weights), invoices, p=weights / weights.sum())
    minute = 1_291_190_400_000 // MINUTE_MS + dice.integers(0, 373 * 24 * 60, invoices)
    line = np.sort(dice.integers(0, invoices, count))
    nameless = dice.random(count) < 0.25
    return pa.table(
        {
            "customer_id": pa.array(customer[line], mask=nameless),
            "t": minute[line] * MINUTE_MS,
            "quantity": dice.integers(1, 25, count) * np.where(dice.random(count) < 0.02, -1, 1),
            "unit_price": np.round(dice.exponential(3.5, count), 2),
        },
        schema=arrow_schema(SOURCE.schema),
    )


def entity_rows(events: pa.Table, count: int, dice: np.random.Generator) -> pa.Table:
    """Customers alike often: half of the rows at any time, half minutes after an own event."""
    known = events.filter(pc.is_valid(events["customer_id"]))
    customers, times = known["customer_id"].to_numpy(), known["t"].to_numpy()
    order = np.argsort(customers, kind="stable")
    distinct, first, sizes = np.unique(customers[order], return_index=True, return_counts=True)
    chosen = dice.integers(0, len(distinct), count)
    own = times[order][first[chosen] + dice.integers(0, 2**40, count) % sizes[chosen]]
    soon = own + dice.integers(1, 10 * MINUTE_MS, count)
    any_time = dice.integers(times.min(), times.max(), count)
    q = np.where(np.arange(count) % 2, soon, any_time)
    return pa.table({"customer_id": distinct[chosen], "event_time_ms": q})


def make_lake(folder: Path, view: CompiledView, events: pa.Table) -> OfflineStore:
    """A lake with the events and their tiles."""
    lake = Lake.open(folder, "features")
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    days = pa.array((events["t"].to_numpy() // DAY_MS).astype(np.int32))
    append_arrow(lake, SOURCE.table, events.append_column("event_day", days))
    partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
    lake.create(tiles_spec(view.table(1), view.keys, partials, BUCKETS))
    append_arrow(lake, view.table(1), tiles_of(view, events))
    record = GenerationRecord(view.name, 1, view.table(1), view.fingerprint, BUCKETS)
    return OfflineStore(lake, lambda _: view, lambda _: record)


def tiles_of(view: CompiledView, events: pa.Table) -> pa.Table:
    """The tiles of these events, as the tile job would write them."""
    columns = {name: Column.from_arrow(events[name]) for name in events.column_names}
    inside = np.flatnonzero(enters(view, columns, events.num_rows))
    columns = {name: column.take(inside) for name, column in columns.items()}
    customers, times = columns["customer_id"].values, columns["t"].values
    starts = floor_ms(times, view.tile_ms)
    order = np.lexsort((starts, customers))
    customers, starts = customers[order], starts[order]
    first = np.flatnonzero(np.append(True, (np.diff(customers) != 0) | (np.diff(starts) != 0)))
    rows = partials_of(view, view.partials, columns, times)
    rows = {name: column.take(order) for name, column in rows.items()}
    folded = fold(view.partials, rows, np.append(first, len(order)), view.tile_ms)
    return pa.table(
        {
            "tile_day": (starts[first] // DAY_MS).astype(np.int32),
            "customer_id": customers[first],
            "tile_start": starts[first],
            **{p.name: folded[p.name].to_arrow(p.type.arrow) for p in view.partials},
        }
    )


def queries(view: CompiledView, windows: tuple[str, ...]) -> dict[str, str]:
    """The two SQL texts for these windows."""
    counts = {f.name: f for f in view.features}
    lengths = {w: counts[f"count_{w}"] for w in windows}
    starts = ", ".join(
        f"(q - {f.window_ms}) // {f.hop_ms} * {f.hop_ms} AS start_{w}" for w, f in lengths.items()
    )
    longest = max(windows, key=lambda w: lengths[w].window_ms or 0)
    return {
        "range join": RANGE_SQL.format(
            starts=starts,
            longest=longest,
            aggregates=",".join(RANGE_AGGREGATES.format(w=w) for w in windows),
        ),
        "ASOF joins": ASOF_SQL.format(
            starts=starts,
            differences=",".join(ASOF_DIFFERENCE.format(w=w) for w in windows),
            joins="\n".join(ASOF_JOIN.format(w=w) for w in windows),
        ),
    }


def one_core() -> None:
    """Keep this process, and every engine in it, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=Path, help="the retail log, Parquet")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=1, help="how many windows, 1 to 5")
    options = parser.parse_args()
    one_core()
    dice = np.random.default_rng(7)
    events = (
        generate_events(540_000, dice) if options.events is None else read_events(options.events)
    )
    rows = entity_rows(events, options.rows, dice)
    windows = WINDOWS[: options.windows]
    view = retail_view(windows).compiled

    database = duckdb.connect(config={"threads": 1})
    database.register("events", events)
    database.execute(EVENTS_SQL)
    numbered = rows.rename_columns(["customer_id", "q"])
    numbered = numbered.append_column("n", pa.array(np.arange(options.rows)))
    database.register("given_rows", numbered)
    database.execute("CREATE TABLE entity_rows AS SELECT * FROM given_rows")

    with tempfile.TemporaryDirectory() as folder:
        store = make_lake(Path(folder), view, events)
        refs = [
            FeatureRef(view.name, f"{name}_{w}")
            for w in windows
            for name in ("sum_amount", "count")
        ]
        contenders: dict[str, Callable[[], pa.Table]] = {
            "ours": lambda: store.get_historical_features(refs, rows)
        }
        for name, text in queries(view, windows).items():
            contenders[name] = lambda text=text: database.sql(text).to_arrow_table()
        times = take_turns(contenders, options.rounds)
    print(
        f"{events.num_rows:,} events, {options.rows:,} rows, windows {', '.join(windows)}, one core"
    )
    report(times, options.rows)


def take_turns(
    contenders: dict[str, Callable[[], pa.Table]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each contender, round by round; one round before it only checks."""
    answers = {name: contender() for name, contender in contenders.items()}
    check(answers)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            begin = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - begin)
    return times


def check(answers: dict[str, pa.Table]) -> None:
    """All numbers are equal; a customer that we do not know has nulls instead of zeros."""
    ours = [c.fill_null(0).to_numpy() for c in answers["ours"].columns[2:]]
    for name, answer in answers.items():
        if name == "ours":
            continue
        for mine, theirs, label in zip(
            ours, answer.columns[1:], answer.column_names[1:], strict=True
        ):
            same = np.isclose(mine, theirs.to_numpy(), rtol=0, atol=1e-6)
            assert same.all(), f"{name}: {label} differs in {(~same).sum()} rows"


def report(times: dict[str, list[float]], rows: int) -> None:
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, median in medians.items():
        ratios = [t / o for t, o in zip(times[name], times["ours"], strict=True)]
        print(
            f"{name:12} {median:7.2f} s  {rows / median:12,.0f} rows/s"
            f"   ours is {statistics.median(ratios):6.2f} times as fast"
        )


if __name__ == "__main__":
    main()
