"""From a request in Python to the bytes of its reply: processor time, without HTTP.

    python -m benchmarks.serving_core            # about half a minute
    python -m benchmarks.serving_core --small    # a few seconds, for a test

Twelve features over five windows, of entities that have so many cells (printed) in a server that
speaks Redis' protocol on the same machine. Microseconds of this process's processor time for one
query of one entity: alone, and among 16, 32 and 64 that are read together; read only, and with the
reply in JSON. ``fold``: decoding and folding alone, of records that were read before. Then one
query of 100 entities, in each wire format, and queries that are answered from the cache (by the
clock: median).

The baseline is a plain server's way, in turn with ours: one command per query, the record decoded,
each feature folded and finished by itself, ``json.dumps``. It is also what our answers have to
equal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._tiles import tile_rows
from paimon_features.core.native import CORE
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView, Selection
from paimon_features.definitions.aggregates import Count, DecayedSum, Max, Mean, Reading, Sum
from paimon_features.definitions.aggregates.fold import fold, newest_tile_end
from paimon_features.online.store import OnlineStore, open_store
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import ViewState
from paimon_features.serving.reading.cached_fetcher import CachedFetcher
from paimon_features.serving.reading.entities import Buckets, entity_keys
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.view_results import ViewPlan
from paimon_features.serving.reading.view_rows import ViewRows
from paimon_features.serving.reading.window_features import cells_before
from paimon_features.serving.replies.reply_formats import arrow_stream, feast_json, message_pack
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.servers.redis_server import RedisServer
from tests.tile_lake import PROJECT, TileLake

NOW_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS + HOUR_MS // 2
SOURCE = EventSource("spend", schema={"user": Int64, "t": Int64, "amount": Float64}, event_time="t")
VIEW = FeatureView(
    "spend",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("amount", windows=["1h", "1d", "7d", "30d"], scale=2),
        Count(windows=["1h", "1d", "7d"]),
        Max("amount", windows=["1d", "30d"], scale=2),
        Mean("amount", windows=["1h", "7d"], scale=2),
        DecayedSum("amount", half_life="1d", windows=["30d"]),
    ],
)
SELECTION = Selection.of([FeatureRef("spend", feature.name) for feature in VIEW.compiled.features])
BATCHES = (1, 16, 32, 64)


@dataclass(frozen=True)
class Size:
    """How many entities there are, and how long and how often each figure is measured."""

    users: int
    seconds: float
    rounds: int


FULL = Size(2_000, 0.25, 9)
SMALL = Size(120, 0.01, 1)


def tiles(users: int) -> pa.Table:
    """Some tiles of the last hour, the last day and the last month for each user."""
    rng = np.random.default_rng(0)
    ago = [i * 5 * MINUTE_MS for i in range(1, 13)]
    ago += [i * HOUR_MS for i in range(2, 24)] + [i * DAY_MS for i in range(1, 30)]
    time_ms = np.tile(NOW_MS - np.array(ago), users)
    return tile_rows(rng, VIEW, np.repeat(np.arange(users), len(ago)), time_ms)


class PlainServer:
    """One query at a time, one feature at a time: what our replies cost and say otherwise."""

    def __init__(self, store: OnlineStore) -> None:
        self._store = store
        self._keys = ViewKeys(PROJECT, "spend")
        [raw] = store.get_many([self._keys.state])
        state = ViewState.from_bytes(raw or b"")
        assert state.epoch is not None
        assert state.content is not None
        self._epoch = state.epoch
        self._buckets = Buckets([Int64], state.content.buckets)
        self._layout = RecordLayout(VIEW.compiled)

    def answer(self, user: int) -> bytes:
        """The reply to a query of one entity."""
        values, high_ms = self.values(user)
        results = [{"values": [user], "statuses": ["PRESENT"], "event_timestamps": [0]}]
        results += [
            {"values": [value], "statuses": ["PRESENT"], "event_timestamps": [high_ms]}
            for value in values.values()
        ]
        return json.dumps(
            {"metadata": {"feature_names": ["user", *values]}, "results": results}
        ).encode()

    def values(self, user: int) -> tuple[dict[str, Any], int]:
        """The features of an entity, and its newest event time."""
        view = VIEW.compiled
        keys = entity_keys(view.keys, {"user": [user]})
        [bucket] = self._buckets.of([keys])
        of_bucket = self._keys.bucket(self._epoch, bucket)
        found = self._store.get_many(
            [self._keys.state, of_bucket.marker, of_bucket.record_stem + keys.encoded[0]]
        )
        records = self._layout.decode([found[2] or b""])
        cell_keys = records.cells.rows["key"]
        values = {}
        for feature in view.features:
            start, end = feature.window.bounds(NOW_MS)
            inside = np.zeros(len(cell_keys), np.bool_)
            for low, high in cells_before(view, feature.level, start, end):
                inside |= (cell_keys >= low) & (cell_keys < high)
            names = dict.fromkeys(("p_event_time_max", *feature.partials))
            columns = self._layout.columns(records.cells.take(inside), list(names))
            offsets = np.array([0, int(inside.sum())])
            merged = fold([view.partial[n] for n in names], columns, offsets, view.tile_ms)
            since_ms = NOW_MS - newest_tile_end(merged, view.tile_ms)
            reading = Reading(NOW_MS, since_ms, feature.window_ms)
            done = feature.aggregate.finish(
                view.scope, [merged[name] for name in feature.partials], reading
            )
            values[feature.name] = done.column.to_arrow(feature.type.arrow).to_pylist()[0]
        return values, int(records.headers["event_high"][0])


class Bench:
    """A store, our fetcher and the baseline over it."""

    def __init__(self, store: OnlineStore, size: Size) -> None:
        self.size = size
        self.fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: NOW_MS)
        self.cached = CachedFetcher(self.fetcher)
        self.plain = PlainServer(store)
        self._at = 0

    def queries(self, count: int, entities: int = 1) -> list[FeatureQuery]:
        """Queries of entities in turn."""
        out = []
        for _ in range(count):
            users = [(self._at + i) % self.size.users for i in range(entities)]
            self._at += entities
            out.append(FeatureQuery(SELECTION, {"user": users}))
        return out

    def check(self) -> None:
        """Our values are the baseline's."""
        for user in range(0, self.size.users, self.size.users // 20):
            expected, _ = self.plain.values(user)
            [got] = self.fetcher.get_many([FeatureQuery(SELECTION, {"user": [user]})])
            assert isinstance(got, OnlineResponse)
            for name, [value] in got.to_pydict().items():
                if name != "user":
                    assert abs(value - expected[name]) <= 1e-9 * abs(value), (name, value)

    def run(
        self, count: int, render: Callable[[OnlineResponse], bytes] | None, entities: int = 1
    ) -> Callable[[], object]:
        """So many queries read together, and rendered."""

        def work() -> None:
            for answer in self.fetcher.get_many(self.queries(count, entities)):
                assert isinstance(answer, OnlineResponse)
                if render is not None:
                    render(answer)

        return work

    def fold(self, entities: int, native: bool) -> Callable[[], object]:
        """Decoding and folding records that were read before, by the native core or by NumPy."""
        [variant] = self.fetcher._views["spend"].variants
        last = self.fetcher._views["spend"].last
        assert last is not None
        assert last.epoch is not None
        plan = ViewPlan(variant, VIEW.compiled.features)
        keys = entity_keys(VIEW.compiled.keys, {"user": list(range(entities))})
        rows = ViewRows("spend", last.epoch, [keys])
        rows.fill(self.fetcher.store.get_many(rows.keys))

        def work() -> None:
            rows.__dict__.pop("_decoded", None)
            part = rows.part(0, entities)
            folded = plan.fold(part, NOW_MS, set()) if native else None
            plan.compute(part, folded, NOW_MS, set())

        return work

    def baseline(self) -> None:
        """The baseline's reply to the next query."""
        self._at += 1
        self.plain.answer(self._at % self.size.users)

    def cached_us(self, entities: int) -> float:
        """A reply in JSON from the cache, by the clock: median."""
        query = FeatureQuery(SELECTION, {"user": list(range(entities))})
        self.cached.get_many([query])
        taken = []
        for _ in range(20 if self.size is SMALL else 2_000):
            started = time.perf_counter()
            [answer] = self.cached.get_many([query])
            assert isinstance(answer, OnlineResponse)
            feast_json(answer)
            taken.append(time.perf_counter() - started)
        return median(taken) * 1e6


def cpu_us(work: Callable[[], object], seconds: float) -> float:
    """Processor time of this process for one call."""
    calls, until = 0, time.perf_counter() + seconds
    started = time.process_time()
    while not calls or time.perf_counter() < until:
        work()
        calls += 1
    return (time.process_time() - started) / calls * 1e6


def run(size: Size) -> dict[str, float]:
    """Measure; all figures of one process on one server, in turn."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        store = open_store(server.url)
        lake = TileLake(Path(folder), VIEW, buckets=4)
        lake.commit_tiles(tiles(size.users))
        lake.materializer(store, clock=lambda: NOW_MS).run_once()
        bench = Bench(store, size)
        bench.check()
        works: dict[str, tuple[Callable[[], object], int]] = {"baseline_us": (bench.baseline, 1)}
        for count in BATCHES:
            works[f"batch_{count}_read_us"] = bench.run(count, None), count
            works[f"batch_{count}_json_us"] = bench.run(count, feast_json), count
        for count in (1, 100):
            for native in (CORE is not None, False):
                works[f"fold_{count}_{'native' if native else 'numpy'}_us"] = (
                    bench.fold(count, native), 1,
                )  # fmt: skip
        formats: dict[str, Callable[[OnlineResponse], bytes] | None] = {
            "read": None, "json": feast_json, "arrow": arrow_stream, "msgpack": message_pack,
        }  # fmt: skip
        for name, render in formats.items():
            works[f"hundred_entities_{name}_us"] = bench.run(1, render, 100), 1
        rounds = [
            {name: cpu_us(work, size.seconds) / queries for name, (work, queries) in works.items()}
            for _ in range(size.rounds)
        ]
        figures = {name: median(of[name] for of in rounds) for name in works}
        figures["batch_32_to_baseline"] = median(
            of["baseline_us"] / of["batch_32_json_us"] for of in rounds
        )
        figures["cached_us"] = bench.cached_us(1)
        figures["cached_hundred_us"] = bench.cached_us(100)
        keys = [key for page in store.scan(b"pf:") for key in page if b"}:" in key]
        found = [raw for raw in store.get_many(keys) if raw is not None]
        headers = RecordLayout(VIEW.compiled).decode(found).headers
        figures["record_bytes"] = median(map(len, found))
        figures["record_cells"] = float(np.median(headers["cells"]))
        store.close()
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
        print(f"{name:32} {value:14,.1f}")


if __name__ == "__main__":
    main()
