"""The point-in-time join compared with DuckDB on the same raw events, all of them on one core.

A million rows (customer, time) request the sum and the number of a customer's purchases in
windows before that time. DuckDB answers once by a range join, and once by prefix sums with an
ASOF join at the end and at the start of each window. Twice: with everything in memory (raw
events in a table of DuckDB's own; tiles and events in Arrow for us), and end to end from the
files of the lake (DuckDB reads those of the raw events, we plan the scans and read tiles and
events). All have to give equal numbers. They take turns; the figures are medians, and ratios
within this run. Partitions have as many days as ``ingest`` would choose, or one with ``--daily``.

    python -m benchmarks.point_in_time --rows 1000000 --windows 1
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

from paimon_features.core.columns.column import Column
from paimon_features.core.times.partition_days import choose_partition_days, first_days
from paimon_features.core.types.schema import Float64, Int64, arrow_schema
from paimon_features.core.windows import DAY_MS, MINUTE_MS, floor_ms
from paimon_features.definitions import CompiledView, Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.definitions.event_partials import enters, partials_of
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY, events_spec, tiles_spec
from paimon_features.offline.joins.point_in_time import PointInTimeJoin
from paimon_features.offline.store import OfflineStore

Contender = Callable[[], pa.Table]
Times = dict[str, list[tuple[float, float]]]
"""Per contender and round: seconds by the clock, and of processor time."""
LOG = Path(__file__).parents[1] / "examples" / "retail" / "data" / "online_retail.parquet"
BUCKETS = 1
"""The log has four thousand customers: one shard holds them well."""
WINDOWS = ("30d", "1h", "1d", "7d", "90d")
"""Windows in the order in which ``--windows`` takes them."""

SOURCE = EventSource(
    "retail",
    schema={
        "customer_id": Int64,
        "invoice_time_ms": Int64,
        "quantity": Int64,
        "unit_price": Float64,
    },
    event_time="invoice_time_ms",
)

LOG_SQL = """SELECT customer_id, invoice_time_ms AS t,
        CAST(round_even(quantity * unit_price * 100, 0) AS BIGINT) AS cents
    FROM {events} WHERE customer_id IS NOT NULL"""

RANGE_SQL = """
WITH log AS ({log}),
requested AS (SELECT *, {starts} FROM entity_rows)
SELECT a.n, {aggregates}
FROM requested a LEFT JOIN log e
    ON e.customer_id = a.customer_id AND e.t < a.q AND e.t >= a.start_{longest}
GROUP BY a.n ORDER BY a.n
"""
RANGE_AGGREGATES = """
    coalesce(sum(e.cents) FILTER (e.t >= a.start_{w}), 0) / 100 AS sum_{w},
    count(e.t) FILTER (e.t >= a.start_{w}) AS count_{w}"""

ASOF_SQL = """
WITH log AS ({log}),
requested AS (SELECT *, {starts} FROM entity_rows),
moments AS (SELECT customer_id, t, sum(cents) AS cents, count(*) AS events FROM log GROUP BY ALL),
prefix AS (
    SELECT customer_id, t,
        sum(cents) OVER so_far AS cents,
        sum(events) OVER so_far AS events
    FROM moments WINDOW so_far AS (PARTITION BY customer_id ORDER BY t)
)
SELECT a.n, {differences}
FROM requested a
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
    """What is requested: the sum and the number of purchases."""
    return FeatureView(
        "spend",
        source=SOURCE,
        entity=Entity("customer", keys={"customer_id": Int64}),
        derive={"amount": "quantity * unit_price"},
        features=[Sum("amount", windows=windows, scale=2), Count(windows=windows)],
    )


def read_events(path: Path) -> pa.Table:
    """The retail log in the columns of the source."""
    log = pq.read_table(path, columns=list(SOURCE.schema))
    return log.select(list(SOURCE.schema)).cast(arrow_schema(SOURCE.schema))


def entity_rows(events: pa.Table, count: int, dice: np.random.Generator) -> pa.Table:
    """Customers alike often: half of the rows at any time, half minutes after an own event."""
    known = events.filter(pc.is_valid(events["customer_id"]))
    customers, times = known["customer_id"].to_numpy(), known[SOURCE.event_time].to_numpy()
    order = np.argsort(customers, kind="stable")
    distinct, first, sizes = np.unique(customers[order], return_index=True, return_counts=True)
    chosen = dice.integers(0, len(distinct), count)
    own = times[order][first[chosen] + dice.integers(0, 2**40, count) % sizes[chosen]]
    soon = own + dice.integers(1, 10 * MINUTE_MS, count)
    any_time = dice.integers(times.min(), times.max(), count)
    q = np.where(np.arange(count) % 2, soon, any_time)
    return pa.table({"customer_id": distinct[chosen], "event_time_ms": q})


def make_lake(
    folder: Path, view: CompiledView, events: pa.Table, tiles: pa.Table, daily: bool = False
) -> OfflineStore:
    """A lake with the events and their tiles.

    Partitions have as many days as ``ingest`` and ``apply`` would choose, or one.
    """
    lake = Lake.open(folder, "features")
    days = events[SOURCE.event_time].to_numpy() // DAY_MS
    span = 1 if daily else choose_partition_days(events.num_rows, np.unique(days), BUCKETS)
    lake.create(events_spec(SOURCE.table, SOURCE.schema, span))
    firsts = pa.array(first_days(days, span))
    append_arrow(lake, SOURCE.table, events.append_column(EVENT_DAY, firsts))
    partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
    lake.create(tiles_spec(view.table(1), view.keys, partials, BUCKETS, span))
    firsts = pa.array(first_days(tiles[TILE_DAY].to_numpy(), span))
    append_arrow(lake, view.table(1), tiles.set_column(0, TILE_DAY, firsts))
    record = GenerationRecord(view.name, 1, view.table(1), view.fingerprint, BUCKETS)
    return OfflineStore(lake, lambda _: view, lambda _: record)


def tiles_of(view: CompiledView, events: pa.Table) -> pa.Table:
    """The tiles of these events, as the tile job would write them."""
    columns = {name: Column.from_arrow(events[name]) for name in events.column_names}
    inside = np.flatnonzero(enters(view, columns, events.num_rows))
    columns = {name: column.take(inside) for name, column in columns.items()}
    customers, times = columns["customer_id"].values, columns[SOURCE.event_time].values
    starts = floor_ms(times, view.tile_ms)
    order = np.lexsort((starts, customers))
    customers, starts = customers[order], starts[order]
    first = np.flatnonzero(np.append(True, (np.diff(customers) != 0) | (np.diff(starts) != 0)))
    rows = partials_of(view, view.partials, columns, times)
    rows = {name: column.take(order) for name, column in rows.items()}
    folded = fold(view.partials, rows, np.append(first, len(order)), view.tile_ms)
    return pa.table(
        {
            TILE_DAY: (starts[first] // DAY_MS).astype(np.int32),
            "customer_id": customers[first],
            "tile_start": starts[first],
            **{p.name: folded[p.name].to_arrow(p.type.arrow) for p in view.partials},
        }
    )


def queries(view: CompiledView, windows: tuple[str, ...], log: str) -> dict[str, str]:
    """The two SQL texts for these windows; ``log`` is the query of the purchases."""
    counts = {f.name: f for f in view.features}
    lengths = {w: counts[f"count_{w}"] for w in windows}
    starts = ", ".join(
        f"(q - {f.window_ms}) // {f.hop_ms} * {f.hop_ms} AS start_{w}" for w, f in lengths.items()
    )
    longest = max(windows, key=lambda w: lengths[w].window_ms or 0)
    return {
        "range join": RANGE_SQL.format(
            log=log,
            starts=starts,
            longest=longest,
            aggregates=",".join(RANGE_AGGREGATES.format(w=w) for w in windows),
        ),
        "ASOF joins": ASOF_SQL.format(
            log=log,
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
    parser.add_argument("--events", type=Path, default=LOG, help="the retail log, Parquet")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=1, help="how many windows, 1 to 5")
    parser.add_argument("--daily", action="store_true", help="partitions of a day")
    options = parser.parse_args()
    one_core()
    events = read_events(options.events)
    run(events, options.rows, options.rounds, options.windows, options.daily)


def run(events: pa.Table, count: int, rounds: int, windows: int, daily: bool = False) -> None:
    """Compare and time all contenders, in memory and from files, and print the figures."""
    chosen = WINDOWS[:windows]
    dice = np.random.default_rng(7)
    rows = entity_rows(events, count, dice)
    view = retail_view(chosen).compiled
    database = duckdb.connect(config={"threads": 1})
    database.register("events", events)
    database.execute(f"CREATE TABLE purchases AS {LOG_SQL.format(events='events')}")
    numbered = rows.rename_columns(["customer_id", "q"])
    numbered = numbered.append_column("n", pa.array(np.arange(count)))
    database.register("given_rows", numbered)
    database.execute("CREATE TABLE entity_rows AS SELECT * FROM given_rows")

    def query(text: str) -> Contender:
        return lambda: database.sql(text).to_arrow_table()

    print(f"{events.num_rows:,} events, {count:,} rows, windows of {', '.join(chosen)}; one core")
    tiles = tiles_of(view, events)
    contenders = {"ours": lambda: in_memory(view, events, tiles, rows)}
    texts = queries(view, chosen, "SELECT * FROM purchases")
    contenders |= {name: query(text) for name, text in texts.items()}
    report("in memory", take_turns(contenders, rounds), count)

    with tempfile.TemporaryDirectory() as folder:
        store = make_lake(Path(folder), view, events, tiles, daily)
        refs = [FeatureRef(view.name, f.name) for f in view.features]
        contenders = {"ours": lambda: store.get_historical_features(refs, rows)}
        files = [file.path for file in live_files(store.lake, SOURCE.table, 1)]
        texts = queries(view, chosen, LOG_SQL.format(events=f"read_parquet({files})"))
        contenders |= {name: query(text) for name, text in texts.items()}
        report("from files", take_turns(contenders, rounds), count)
    database.close()


def in_memory(view: CompiledView, events: pa.Table, tiles: pa.Table, rows: pa.Table) -> pa.Table:
    """Our join alone."""
    join = PointInTimeJoin(view, view.features, rows, rows["event_time_ms"].to_numpy())
    join.add_events(events)
    join.join_tiles([tiles])
    results = join.results()
    for feature in view.features:
        column = results.columns[feature.name].to_arrow(feature.type.arrow)
        rows = rows.append_column(feature.name, column)
    return rows


def take_turns(contenders: dict[str, Contender], rounds: int) -> Times:
    """How long each contender takes, round by round; one round before it only checks."""
    results = {name: contender() for name, contender in contenders.items()}
    check(results)
    times: Times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            begin, worked = time.perf_counter(), time.process_time()
            contender()
            times[name].append((time.perf_counter() - begin, time.process_time() - worked))
    return times


def check(results: dict[str, pa.Table]) -> None:
    """All numbers are equal, to the bit; where we do not know a customer, DuckDB says zero."""
    ours = results["ours"]
    for name, answer in results.items():
        for label in answer.column_names[1:] if name != "ours" else ():
            mine = ours[label.replace("sum", "sum_amount")].fill_null(0).to_numpy()
            other = mine != answer[label].to_numpy()
            if other.any():
                raise AssertionError(f"{name}: {label} differs in {other.sum()} rows")


def report(title: str, times: Times, rows: int) -> None:
    """A line per contender: medians, and medians of the ratios within each round."""
    print(f"{title:32}   by the clock            by processor time")
    for name, turns in times.items():
        reported = [f"  {name:12} {statistics.median(wall for wall, _ in turns):6.2f} s"]
        for side in (0, 1):
            seconds = [turn[side] for turn in turns]
            ours = [turn[side] for turn in times["ours"]]
            ratio = statistics.median(t / o for t, o in zip(seconds, ours, strict=True))
            reported.append(f"{rows / statistics.median(seconds):12,.0f} rows/s {ratio:6.2f}x")
        print("  ".join(reported))


if __name__ == "__main__":
    main()
