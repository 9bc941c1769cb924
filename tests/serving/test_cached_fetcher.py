"""Cached reads: what was read a moment ago, never older than it may be, never of another epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paimon_features.core.errors import (
    DefinitionError,
    OnlineStoreError,
    PaimonFeaturesError,
    RequestError,
)
from paimon_features.core.windows import HOUR_MS, MINUTE_MS
from paimon_features.definitions import Selection
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.cached_fetcher import CachedFetcher
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.reply_formats import feast_json
from paimon_features.serving.replies.response import OnlineResponse
from tests.serving.test_fetcher import NOW, FakeClock, click, refs, view_of
from tests.serving.test_interactions import OUTPUTS, SOLD, SPEND, TASTE, Shop, buy
from tests.tile_lake import PROJECT, TileLake

VIEW = view_of(Sum("x", windows=["1h"]), Last("word", windows=["1h"]), Count(windows=["1d"]))
SELECTION = Selection.of(refs(VIEW))


class CountingStore(MemoryStore):
    """Counts the records that are read, and can be gone."""

    records = 0
    gone = False

    def get_many(self, keys: Any) -> Any:
        if self.gone:
            raise OnlineStoreError("gone")
        self.records += sum(b"}:" in key for key in keys)
        return super().get_many(keys)


class Bench:
    """A view in a store, read through a cache of one second."""

    def __init__(self, folder: Path, view: Any = VIEW, **options: Any) -> None:
        self.clock = FakeClock()
        self.lake, self.store = TileLake(folder, view), CountingStore(self.clock)
        self.lake.commit([click(user, NOW - 1, user / 2, f"w{user}") for user in range(5)])
        self.worker = self.lake.materializer(self.store, clock=self.clock)
        self.worker.run_once()
        fetcher = FeatureFetcher(PROJECT, [view.compiled], self.store, clock=self.clock)
        self.plain = fetcher
        self.cached = CachedFetcher(fetcher, **options)
        self.selection = Selection.of(refs(view))

    def get(self, *users: Any, as_of_ms: int | None = None) -> OnlineResponse:
        [answer] = self.cached.get_many(
            [FeatureQuery(self.selection, {"user": list(users)}, as_of_ms)]
        )
        if isinstance(answer, PaimonFeaturesError):
            raise answer
        return answer

    def sums(self, *users: Any) -> list[Any]:
        values: list[Any] = self.get(*users).to_pydict()["sum_x_1h"]
        return values


def test_what_was_read_is_answered_again_without_the_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.get(1, 2, 9)
    assert bench.store.records == 3
    again = bench.get(9, 1)
    assert bench.store.records == 3
    assert again.to_pylist() == [first.to_pylist()[2], first.to_pylist()[0]]
    assert again.statuses.to_pylist() == [first.statuses.to_pylist()[i] for i in (2, 0)]
    assert again.event_times["v"].to_pylist() == [None, NOW - 1]
    assert (bench.cached.hits, bench.cached.misses) == (2, 3)
    partly = bench.get(1, 3)
    assert bench.store.records == 4
    assert partly.to_pydict()["sum_x_1h"] == [0.5, 1.5]


def test_an_answer_lasts_as_long_as_it_may_and_tells_its_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ttl_ms=1_000)
    bench.get(1)
    bench.lake.commit([click(1, NOW, 10.0)])
    bench.worker.run_once()
    bench.clock.now_ms += 1_000
    old = bench.get(1, 2)  # one row of now, one of before: the reply is as of the older one
    assert (old.to_pydict()["sum_x_1h"], old.as_of_ms) == ([0.5, 1.0], NOW)
    assert old.freshness["v"].applied_snapshot == 1
    bench.clock.now_ms += 1
    new = bench.get(1)
    assert (new.to_pydict()["sum_x_1h"], new.as_of_ms) == ([10.5], NOW + 1_001)


def test_a_clock_that_was_set_back_makes_nothing_last_longer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.get(1)
    bench.clock.now_ms -= 10
    bench.get(1)
    assert bench.store.records == 2


def test_nothing_is_served_beyond_the_bound_on_staleness(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]), max_staleness="1min")
    bench = Bench(tmp_path, view, ttl_ms=10 * MINUTE_MS)
    bench.get(1)
    bench.clock.now_ms += MINUTE_MS
    assert bench.get(1).statuses.to_pylist() == [{"sum_x_1h": "PRESENT"}]
    assert bench.store.records == 1
    bench.clock.now_ms += 1
    for reads in (2, 3):  # stale rows are read each time, and reported
        assert bench.get(1).statuses.to_pylist() == [{"sum_x_1h": "STALE"}]
        assert bench.store.records == reads


def test_another_epoch_is_seen_and_never_mixed_with_the_one_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ttl_ms=HOUR_MS, recheck_ms=100)
    assert bench.sums(1, 2) == [0.5, 1.0]
    bench.lake.commit([click(user, NOW - 1, 10.0) for user in range(5)])
    bench.worker.rebuild()
    assert bench.sums(1, 2) == [0.5, 1.0]  # not looked yet
    assert bench.sums(1, 3) == [10.5, 11.5]  # seen by reading 3: 1 is read again
    assert bench.sums(2) == [11.0]
    bench.worker.rebuild()
    bench.clock.now_ms += 100
    records = bench.store.records
    bench.sums(1, 2, 3)
    assert bench.store.records == records + 3


def test_a_store_that_is_gone_or_emptied_is_an_error_as_without_a_cache(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ttl_ms=HOUR_MS, recheck_ms=100)
    bench.get(1)
    bench.clock.now_ms += 100
    bench.store.gone = True
    with pytest.raises(OnlineStoreError, match="gone"):
        bench.get(1)
    bench.store.gone = False
    bench.store.restart(keep=False)
    with pytest.raises(OnlineStoreError, match="not in the online store yet"):
        bench.get(1)


def test_the_least_used_leaves_where_there_are_too_many(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_size=2)
    bench.get(1, 2, 3)
    bench.get(2, 3)
    assert bench.store.records == 3
    bench.get(1)
    assert bench.store.records == 4
    bench.cached.clear()
    bench.get(1)
    assert bench.store.records == 5


def test_an_ask_that_names_its_time_is_read_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for reads in (1, 2):
        bench.get(1, as_of_ms=NOW)
        assert bench.store.records == reads


def test_equal_values_of_other_types_are_no_hits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.get(1)
    for wrong in (1.0, "1"):
        with pytest.raises(RequestError):
            bench.get(wrong)
    assert bench.get().to_pylist() == []


def test_bounds_have_to_make_sense(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for options in ({"ttl_ms": 0}, {"recheck_ms": -1}):
        with pytest.raises(DefinitionError, match="expected at least"):
            CachedFetcher(bench.plain, **options)


def test_replies_are_those_of_plain_reads_at_one_time(tmp_path: Path) -> None:
    # several views, all statuses, interactions; the clock stands, so that nothing may differ
    rng = random.Random(5)
    events = [
        buy(rng.randrange(9), rng.choice("abc"), NOW - rng.randrange(6 * 24 * HOUR_MS), 2.5)
        for _ in range(80)
    ]
    shop = Shop(tmp_path, events)
    views = [view.compiled for view in (SPEND, SOLD, TASTE)]
    plain = FeatureFetcher(PROJECT, views, shop.store, clock=lambda: NOW + 30 * MINUTE_MS)
    cached = CachedFetcher(plain, recheck_ms=0)
    names = [o for o in OUTPUTS if not getattr(o, "inputs", None)]
    for _ in range(60):
        queries = []
        for _ in range(rng.randint(1, 4)):
            outputs = names if rng.random() < 0.5 else refs(SPEND)
            rows = rng.choice((1, 1, 3))
            entities = {
                "user": [rng.randrange(12) for _ in range(rows)],
                "product": [rng.choice("abcd") for _ in range(rows)],
            }
            queries.append(FeatureQuery(Selection.of(outputs), entities))
        for got, expected in zip(cached.get_many(queries), plain.get_many(queries), strict=True):
            assert isinstance(got, OnlineResponse)
            assert isinstance(expected, OnlineResponse)
            assert got.table.equals(expected.table)
            assert got.statuses.to_pydict() == expected.statuses.to_pydict()
            document = msgspec.json.decode(feast_json(got))
            other = msgspec.json.decode(feast_json(expected))
            assert document["results"] == other["results"]
            assert document["metadata"]["feature_names"] == other["metadata"]["feature_names"]
    assert cached.hits > 50
