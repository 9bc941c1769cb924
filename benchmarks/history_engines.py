"""Historical features by the local join and by a Flink batch job, from the same lake.

A million rows request the sum and the number of a customer's purchases in five windows: of the
retail log, whose customers have few tiles each, or (``--skewed``) of made-up purchases of which the
most frequent customer has one in sixty, and so has one in sixty rows. A local Flink of two slots,
its JVM started before.

    python -m benchmarks.history_engines --rows 1000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bounded import BEGIN_MS, DAYS, purchases
from benchmarks.point_in_time import LOG, SOURCE, WINDOWS, entity_rows, make_lake, tiles_of
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.flink.gateway import start_gateway
from paimon_features.offline.flink.engine import FlinkHistoryEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--skewed", action="store_true")
    parser.add_argument("--customers", type=int, default=200_000)
    given = parser.parse_args()
    view = FeatureView(
        "spend",
        source=SOURCE,
        entity=Entity("customer", keys={"customer_id": Int64}),
        derive={"amount": "quantity * unit_price"},
        features=[Sum("amount", windows=WINDOWS, scale=2), Count(windows=WINDOWS)],
    ).compiled
    dice = np.random.default_rng(7)
    if given.skewed:
        events = purchases(1_000_000, given.customers, dice)
        who = (given.customers * dice.random(given.rows) ** 3).astype(np.int64)
        times = dice.integers(30 * DAY_MS, DAYS * DAY_MS, given.rows) + BEGIN_MS
        rows = pa.table({"customer_id": who, "event_time_ms": times})
    else:
        events = pq.read_table(LOG).select(list(SOURCE.schema))
        rows = entity_rows(events, given.rows, dice)
    tiles = tiles_of(view, events)
    refs = [FeatureRef(view.name, f.name) for f in view.features]
    with tempfile.TemporaryDirectory() as folder:
        store = make_lake(Path(folder), view, events, tiles)
        reported: list[str] = []
        began = time.perf_counter()

        def on_message(line: str) -> None:
            reported.append(f"{line} at {time.perf_counter() - began:.1f} s")

        engine = FlinkHistoryEngine(Path(folder) / "state", parallelism=2, on_message=on_message)
        start_gateway(engine.state_dir, short_lived=False)
        store.get_historical_features(refs, rows.slice(0, 1000), engine=engine)
        taken, answers = [], []
        for chosen in (None, engine):
            began = time.perf_counter()
            answers.append(store.get_historical_features(refs, rows, engine=chosen))
            taken.append(time.perf_counter() - began)
    assert answers[0].equals(answers[1])
    print(f"{events.num_rows:,} events, {tiles.num_rows:,} tiles, {given.rows:,} rows")
    for name, seconds in zip(("local", "flink"), taken, strict=True):
        rate = given.rows / seconds
        print(f"{name:6} {seconds:8.2f} s {rate:12,.0f} rows/s {seconds / taken[0]:7.1f} x")
    print("\n".join(reported[-2:]))


if __name__ == "__main__":
    main()
