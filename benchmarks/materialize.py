"""Tiles per second from a snapshot to Redis: following, and rebuilding.

    python -m benchmarks.materialize            # full size, about a minute
    python -m benchmarks.materialize --small    # a few seconds

A tile is a row of the tile table (one entity in one tile of five minutes); it goes into cells of
all three levels. ``follow`` applies commits of one second of a busy stream, Zipf keys, to a store
that holds a month; ``rebuild`` builds that store. ``follow_late`` and ``rebuild_small_files`` are
the hard case of many small files: rows over thirty days, a file per day and bucket. Everything is
one process; the Redis-protocol server runs on the same machine.

Two baselines run in turn with it, over the same server:

- ``hset``: a hash per entity, a field per cell, ``HSET`` of the finished cell in a pipeline. It
  reads no table, merges nothing, and would count a tile twice after a crash.
- ``set``: the very records that the materializer wrote, by ``SET`` in a pipeline: what the
  writing alone costs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from benchmarks._tiles import tile_rows
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Max, Sum
from paimon_features.online.store import open_store
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.servers.redis_server import RedisServer
from tests.tile_lake import PROJECT, TileLake

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
LEVELS = len(VIEW.compiled.levels_ms)
PIPELINE = 1_000
"""Commands that a baseline sends at a time: as many as the materializer's records."""


@dataclass(frozen=True)
class Size:
    """How much is measured: rows of the tile table, and how often."""

    base: int
    commit: int
    commits: int
    users: int
    rounds: int
    small_files_base: int


FULL = Size(1_500_000, 20_000, 30, 50_000, 5, 5_000)
SMALL = Size(20_000, 2_000, 2, 5_000, 1, 1_000)


def tiles(rng: np.random.Generator, rows: int, users: int, span_ms: int, now_ms: int) -> pa.Table:
    """Distinct (user, tile) rows of events that came within ``span_ms`` before ``now_ms``.

    At most ``rows``: fewer where so many users have not so many tiles.
    """
    user = np.minimum(rng.zipf(1.3, rows * 3), 10**9) * 2_654_435_761 % users
    time_ms = now_ms - rng.integers(0, span_ms, rows * 3)
    tile = time_ms // (5 * MINUTE_MS) * 5 * MINUTE_MS
    _, first = np.unique(user * 2**40 + tile // MINUTE_MS, return_index=True)
    chosen = rng.permutation(first)[:rows]
    return tile_rows(rng, VIEW, user[chosen], time_ms[chosen])


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, by the clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Baselines:
    """The same server written to without any of our work, in a database of its own."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url.rpartition("/")[0] + "/1")

    def hset(self, table: pa.Table) -> float:
        """Tiles per second: one ``HSET`` per tile and level, all prepared beforehand."""
        users, starts = table["user"].to_pylist(), table["tile_start"].to_numpy()
        cell = bytes(8 * len(VIEW.compiled.partials))
        commands = [
            ("HSET", b"h:%d" % user, b"%d:%d" % (level, index), cell)
            for level, step in enumerate(VIEW.compiled.levels_ms)
            for user, index in zip(users, (starts // step).tolist(), strict=True)
        ]
        return len(table) / self._timed(commands)

    def set(self, records: dict[bytes, bytes]) -> float:
        """Records per second: one ``SET`` for each."""
        return len(records) / self._timed([("SET", k, v) for k, v in records.items()])

    def _timed(self, commands: list[tuple[Any, ...]]) -> float:
        def send() -> None:
            for start in range(0, len(commands), PIPELINE):
                with self._client.pipeline(transaction=False) as pipeline:
                    for command in commands[start : start + PIPELINE]:
                        pipeline.execute_command(*command)
                    pipeline.execute()

        taken = seconds(send)
        self._client.flushdb()
        return taken

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


class Bench:
    """One tile table, one store, and what was measured of them."""

    def __init__(self, folder: Path, url: str, size: Size) -> None:
        self.size = size
        self.rng = np.random.default_rng(0)
        self.lake = TileLake(folder, VIEW, buckets=4)
        self.store = open_store(url)
        self.materializer = self.lake.materializer(self.store, lease_ttl_ms=10_000)
        self.baselines = Baselines(url)
        self.now_ms = NOW_MS

    def load(self, rows: int) -> None:
        """A month of tiles, up to 250,000 in a commit."""
        loaded = 0
        while loaded < rows:
            wanted = min(250_000, rows - loaded)
            batch = tiles(self.rng, wanted, self.size.users, 30 * DAY_MS, NOW_MS)
            self.lake.commit_tiles(batch)
            loaded += len(batch)

    def records(self) -> dict[bytes, bytes]:
        """What the store holds of entities."""
        keys = [k for page in self.store.scan(b"pf:") for k in page if b"}:" in k]
        return {k: v for k, v in zip(keys, self.store.get_many(keys), strict=True) if v}

    def rebuild(self) -> dict[str, float]:
        """Rebuilds and both baselines in turn; medians, in tiles per second."""
        sample = tiles(self.rng, self.size.base // 30, self.size.users, 30 * DAY_MS, NOW_MS)
        ours, hset, written = [], [], []
        for _ in range(self.size.rounds):
            started = time.perf_counter()
            built = self.materializer.rebuild()  # and deletes the records of the epoch before
            ours.append(built.tiles / (time.perf_counter() - started))
            hset.append(self.baselines.hset(sample))
            records = self.records()
            written.append(self.baselines.set(records) * built.tiles / len(records))
        return {
            "tiles": built.tiles,
            "records": built.records,
            "tiles_per_s": median(ours),
            "hset_tiles_per_s": median(hset),
            "set_tiles_per_s": median(written),
        }

    def follow(self, span_ms: int) -> dict[str, float]:
        """Commits of tiles within ``span_ms`` and both baselines in turn; medians."""
        ours, hset, written, counts, records = [], [], [], [], []
        for _ in range(self.size.commits):
            self.now_ms += 1_000
            new = tiles(self.rng, self.size.commit, self.size.users, span_ms, self.now_ms)
            self.lake.commit_tiles(new)
            started = time.perf_counter()
            done = self.materializer.run_once()
            ours.append(done.tiles / (time.perf_counter() - started))
            counts.append(done.tiles)
            records.append(done.records)
            hset.append(self.baselines.hset(new))
            some = dict(self._some_records(done.records))
            written.append(self.baselines.set(some) * done.tiles / done.records)
        return {
            "tiles_per_commit": median(counts),
            "records_per_commit": median(records),
            "tiles_per_s": median(ours),
            "hset_tiles_per_s": median(hset),
            "set_tiles_per_s": median(written),
        }

    def _some_records(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        for page in self.store.scan(b"pf:"):
            keys = [key for key in page if b"}:" in key][:count]
            count -= len(keys)
            yield from zip(keys, (v or b"" for v in self.store.get_many(keys)), strict=True)
            if count <= 0:
                return

    def lookup(self) -> dict[str, float]:
        """Milliseconds per request of all features, for one and for a hundred entities."""
        fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], self.store)
        refs = [FeatureRef(VIEW.name, f.name) for f in VIEW.compiled.features]
        figures = {}
        for entities in (1, 100):
            requested = {"user": self.rng.integers(0, self.size.users, entities)}
            times = [
                seconds(lambda requested=requested: fetcher.get(refs, requested, NOW_MS))  # type: ignore[misc]
                for _ in range(20 if self.size is SMALL else 300)
            ]
            figures[f"{entities}_entities_ms"] = median(times) * 1_000
        return figures

    def close(self) -> None:
        """Let go of leases and connections."""
        self.materializer.close()
        self.store.close()
        self.baselines.close()


def named(prefix: str, figures: dict[str, float]) -> Iterable[tuple[str, float]]:
    """The figures under their prefix, with their ratios to the baselines."""
    for name, value in figures.items():
        yield f"{prefix}_{name}", value
    for baseline in ("hset", "set"):
        if f"{baseline}_tiles_per_s" in figures:
            ratio = figures["tiles_per_s"] / figures[f"{baseline}_tiles_per_s"]
            yield f"{prefix}_to_{baseline}", ratio


def run(size: Size) -> dict[str, float]:
    """Measure; all figures of one process on one server."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        bench = Bench(Path(folder) / "busy", server.url, size)
        bench.load(size.base)
        figures |= named("rebuild", bench.rebuild())
        figures |= named("follow", bench.follow(10 * MINUTE_MS))
        figures |= named("follow_late", bench.follow(30 * DAY_MS))
        figures |= named("lookup", bench.lookup())
        bench.close()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        bench = Bench(Path(folder) / "small", server.url, size)
        bench.load(size.small_files_base)
        figures |= named("rebuild_small_files", bench.rebuild())
        bench.close()
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = run(SMALL if arguments.small else FULL)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:14,.2f}")


if __name__ == "__main__":
    main()
