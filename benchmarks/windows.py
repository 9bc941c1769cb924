"""Thirty windows compared with one of the same length, offline and online.

Six aggregates over five windows, the longest of 30 days, and the same six over those 30 days
only, read from the same events. They take turns; printed are medians, and the median of the
ratios within each round.

    python -m benchmarks.windows --rows 1000000 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bounded import BEGIN_MS, DAYS, WINDOWS, open_store, purchases, view_of
from benchmarks.point_in_time import make_lake, one_core, tiles_of
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import FeatureRef, FeatureView
from paimon_features.online.store import open_store as open_online
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.servers.redis_server import RedisServer
from tests.tile_lake import PROJECT, TileLake

Read = Callable[[], object]


def turns(title: str, one: Read, all_of_them: Read, rounds: int) -> None:
    """Time both in turns, and print the figures."""
    one()
    all_of_them()
    times: list[list[float]] = []
    for _ in range(rounds):
        taken = []
        for read in (one, all_of_them):
            begin, worked = time.perf_counter(), time.process_time()
            read()
            taken += [time.perf_counter() - begin, time.process_time() - worked]
        times.append(taken)
    wall, busy, wall_all, busy_all = (
        statistics.median(column) for column in zip(*times, strict=True)
    )
    ratio = statistics.median(t[2] / t[0] for t in times)
    by_processor = statistics.median(t[3] / t[1] for t in times)
    print(
        f"{title:34} {wall * 1000:10,.2f} ms {wall_all * 1000:10,.2f} ms  {ratio:5.2f}x   "
        f"by processor time {busy * 1000:10,.2f} {busy_all * 1000:10,.2f}  {by_processor:5.2f}x",
        flush=True,
    )


def offline(folder: Path, events: pa.Table, tiles: pa.Table, rows: int, rounds: int) -> None:
    """Point-in-time reads of many rows, from the lake's files."""
    wide, narrow = view_of().compiled, view_of(("30d",)).compiled
    make_lake(folder, wide, events, tiles)
    dice = np.random.default_rng(1)
    customers = events["customer_id"].to_numpy()
    requested = pa.table(
        {
            "customer_id": dice.choice(customers, rows),
            "event_time_ms": dice.integers(30 * DAY_MS, DAYS * DAY_MS, rows) + BEGIN_MS,
        }
    )

    def reading(view: FeatureView) -> Read:
        store = open_store(folder, view.compiled)
        refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
        return lambda: store.get_historical_features(refs, requested, memory_mb=8192)

    assert wide.fingerprint == narrow.fingerprint
    one, all_of_them = reading(view_of(("30d",))), reading(view_of())
    turns(f"offline, {rows:,} rows", one, all_of_them, rounds)


def online(folder: Path, tiles: pa.Table, url: str, rounds: int) -> None:
    """Lookups of one and of a hundred entities; each figure is of a hundred lookups."""
    with ExitStack() as stack:
        fetchers = []
        for number, windows in enumerate((("30d",), WINDOWS)):
            view = view_of(windows)
            store = open_online(url.rpartition("/")[0] + f"/{number}")
            stack.callback(store.close)
            lake = TileLake(folder / str(number), view, buckets=2)
            lake.commit_tiles(tiles)
            worker = lake.materializer(store)
            stack.callback(worker.close)
            worker.rebuild()
            refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
            fetchers.append((FeatureFetcher(PROJECT, [view.compiled], store), refs))
        as_of_ms = BEGIN_MS + DAYS * DAY_MS
        customers = np.unique(tiles["customer_id"].to_numpy())
        for count in (1, 100):
            dice = np.random.default_rng(2)
            requested = [{"customer_id": dice.choice(customers, count)} for _ in range(100)]

            def reading(number: int, requested: list[dict[str, np.ndarray]] = requested) -> Read:
                fetcher, refs = fetchers[number]
                return lambda: [fetcher.get(refs, entities, as_of_ms) for entities in requested]

            turns(f"online, 100 x {count} entities", reading(0), reading(1), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--customers", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    dice = np.random.default_rng(7)
    events = purchases(options.events, options.customers, dice)
    tiles = tiles_of(view_of().compiled, events)
    print(f"{events.num_rows:,} events, {tiles.num_rows:,} tiles; one window, thirty, ratio")
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        one_core()
        offline(Path(folder) / "offline", events, tiles, options.rows, options.rounds)
        online(Path(folder), tiles, server.url, options.rounds)


if __name__ == "__main__":
    main()
