"""Tiles per second from a snapshot to Redis: following, and rebuilding.

    python benchmarks/materialize.py            # full size, about a minute
    python benchmarks/materialize.py --small    # a few seconds

A tile is a row of the tile table (one entity in one tile of five minutes); it goes into cells of
all three levels. ``follow`` applies commits of one second of a busy stream, Zipf keys, to a store
that holds a month; ``rebuild`` builds that store. Everything is one process; the Redis-protocol
server runs beside it on the same machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.aggregates import Count, DecayedSum, Max, Sum
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.online import open_store
from paimon_features.schema import Float64, Int64
from paimon_features.serving.fetcher import FeatureFetcher
from paimon_features.setup.redis_server import RedisServer
from paimon_features.testing.tile_lake import PROJECT, TileLake
from paimon_features.windows import DAY_MS, HOUR_MS, MINUTE_MS

NOW_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
SOURCE = EventSource("spend", schema={"user": Int64, "t": Int64, "amount": Float64}, event_time="t")
VIEW = FeatureView(
    "spend",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("amount", windows=["1h", "1d", "30d"], scale=2),
        Count(windows=["1h", "7d"]),
        Max("amount", windows=["1d"]),
        DecayedSum("amount", half_life="1d", windows=["30d"]),
    ],
)


def tiles(rng: np.random.Generator, rows: int, users: int, span_ms: int, now_ms: int) -> pa.Table:
    """Distinct (user, tile) rows of events that came within ``span_ms`` before ``now_ms``."""
    user = np.minimum(rng.zipf(1.3, rows * 3), 10**9) * 2_654_435_761 % users
    time_ms = now_ms - rng.integers(0, span_ms, rows * 3)
    tile = time_ms // (5 * MINUTE_MS) * 5 * MINUTE_MS
    _, first = np.unique(user * 2**40 + tile // MINUTE_MS, return_index=True)
    chosen = rng.permutation(first)[:rows]
    user, time_ms, tile = user[chosen], time_ms[chosen], tile[chosen]
    columns: dict[str, Any] = {
        "tile_day": (tile // DAY_MS).astype(np.int32),
        "user": user,
        "tile_start": tile,
    }
    for partial in VIEW.compiled.partials:
        if partial.name == "p_event_time_max":
            columns[partial.name] = time_ms
        elif partial.type is Int64:
            columns[partial.name] = rng.integers(1, 10_000, len(user))
        else:
            columns[partial.name] = rng.random(len(user))
    return pa.table(columns)


def run(small: bool) -> dict[str, float]:
    """Measure; the figures are tiles per second unless their name says otherwise."""
    base, commit, commits, users = (
        (40_000, 4_000, 3, 5_000) if small else (1_500_000, 20_000, 15, 50_000)
    )
    rng = np.random.default_rng(0)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        lake = TileLake(Path(folder), VIEW, buckets=4)
        loaded = 0
        while loaded < base:
            batch = tiles(rng, min(250_000, base - loaded), users, 30 * DAY_MS, NOW_MS)
            lake.commit_tiles(batch)
            loaded += batch.num_rows
        store = open_store(server.url)
        materializer = lake.materializer(store, lease_ttl_ms=10_000)
        started = time.perf_counter()
        built = materializer.run_once()
        figures["rebuild"] = built.tiles / (time.perf_counter() - started)
        figures["rebuilt_tiles"] = built.tiles
        figures["records"] = built.records
        applied = seconds = 0.0
        for i in range(commits):
            now_ms = NOW_MS + i * 1_000
            lake.commit_tiles(tiles(rng, commit, users, 10 * MINUTE_MS, now_ms))
            started = time.perf_counter()
            result = materializer.run_once()
            seconds += time.perf_counter() - started
            applied += result.tiles
        figures["follow"] = applied / seconds
        figures["follow_tiles_per_record"] = commit / max(1, result.records)
        fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], store)
        refs = [FeatureRef(VIEW.name, f.name) for f in VIEW.compiled.features]
        for entities in (1, 100):
            asked = {"user": rng.integers(0, users, entities)}
            fetcher.get(refs, asked, NOW_MS)
            started, rounds = time.perf_counter(), 20 if small else 200
            for _ in range(rounds):
                fetcher.get(refs, asked, NOW_MS)
            figures[f"lookup_{entities}_entities_ms"] = (
                (time.perf_counter() - started) / rounds * 1000
            )
        materializer.close()
        store.close()
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = run(arguments.small)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:14,.2f}")


if __name__ == "__main__":
    main()
