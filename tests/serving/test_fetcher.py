"""Windows, statuses and freshness of online reads, and what they refuse to answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    OnlineStoreError,
    RequestError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Sum, Variance
from paimon_features.online.store import MemoryStore, ViewState, Write
from paimon_features.online.store.expiry import expire_after_ms
from paimon_features.online.store.keys import ViewKeys
from paimon_features.serving.reading.fetcher import FeatureFetcher
from tests.tile_lake import PROJECT, TileLake

SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS


class FakeClock:
    def __init__(self, now_ms: int = NOW) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def view_of(*features: Any, name: str = "v", **options: Any) -> FeatureView:
    return FeatureView(name, source=SOURCE, entity=USER, features=features, **options)


def click(user: int, t: int, x: float | None = 1.0, word: str | None = None) -> dict[str, Any]:
    return {"user": user, "t": t, "x": x, "word": word}


def refs(view: FeatureView) -> list[FeatureRef]:
    return [FeatureRef(view.name, f.name) for f in view.compiled.features]


def ready(
    folder: Path, view: FeatureView, events: list[dict[str, Any]], **options: Any
) -> tuple[TileLake, MemoryStore, FeatureFetcher]:
    clock = options.pop("clock", FakeClock())
    lake, store = TileLake(folder, view), MemoryStore(clock)
    lake.commit(events)
    lake.materializer(store, clock=clock).run_once()
    return lake, store, FeatureFetcher(PROJECT, [view.compiled], store, clock=clock)


def test_one_request_of_many_entities_equals_many_of_one(tmp_path: Path) -> None:
    rng = random.Random(5)
    view = view_of(
        Sum("x", windows=["1h", "7d"]), DecayedSum("x", half_life="1h", windows=["1d"]),
        Last("word", windows=[None]), Count(windows=["30d"]), ttl="10d",
    )  # fmt: skip
    events = [
        click(rng.randrange(40), NOW - int(rng.expovariate(1) * 5 * DAY_MS), rng.random(), "w")
        for _ in range(400)
    ]
    _, _, fetcher = ready(tmp_path, view, events)
    users = [rng.randrange(45) for _ in range(60)]
    whole = fetcher.get(refs(view), {"user": users}, NOW)
    for i, user in enumerate(users):
        single = fetcher.get(refs(view), {"user": [user]}, NOW)
        assert single.table.to_pylist()[0] == whole.table.slice(i, 1).to_pylist()[0]
        assert single.statuses.to_pylist()[0] == whole.statuses.slice(i, 1).to_pylist()[0]
        assert single.event_times["v"][0] == whole.event_times["v"][i]
    assert {s for row in whole.statuses.to_pylist() for s in row.values()} >= {"PRESENT", "MISSING"}


def test_no_entities_give_no_rows(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    _, _, fetcher = ready(tmp_path, view, [click(1, NOW)])
    got = fetcher.get(refs(view), {"user": []}, NOW)
    assert got.table.num_rows == got.statuses.num_rows == 0
    assert got.table.schema.names == ["user", "sum_x_1h"]


# -- windows and statuses ------------------------------------------------------------------


def test_edges_of_tile_and_hop(tmp_path: Path) -> None:
    #  hop 5 min   |----a----|---------|---------|
    #  window 10 min, start closed and rounded down, end open
    view = view_of(Sum("x", windows=["10min"]))
    edge = NOW
    _, _, fetcher = ready(tmp_path, view, [click(1, edge, 5.0)])
    total = {
        q: fetcher.get(refs(view), {"user": [1]}, q).to_pydict()["sum_x_10min"][0]
        for q in (edge, edge + 1, edge + 15 * MINUTE_MS - 1, edge + 15 * MINUTE_MS)
    }
    assert total == {
        edge: None, edge + 1: 5.0, edge + 15 * MINUTE_MS - 1: 5.0, edge + 15 * MINUTE_MS: None,
    }  # fmt: skip


def test_missing_expired_and_present(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]), Last("word", windows=["1h"]), ttl="2d")
    events = [
        click(1, NOW - 10 * MINUTE_MS, 2.0, "new"),
        click(2, NOW - DAY_MS, 2.0, "old"),
        click(3, NOW - 2 * DAY_MS - 1, 2.0, "older"),
    ]
    _, _, fetcher = ready(tmp_path, view, events)
    got = fetcher.get(refs(view), {"user": [1, 2, 3, 4]}, NOW)
    assert got.to_pydict() == {
        "user": [1, 2, 3, 4],
        "sum_x_1h": [2.0, 0.0, None, None],
        "last_word_1h": ["new", None, None, None],
    }
    # 3 and 4 cannot be distinguished: its events have left every window and the ttl
    assert got.statuses.column("sum_x_1h").to_pylist() == [
        "PRESENT", "PRESENT", "MISSING", "MISSING",
    ]  # fmt: skip
    longer = view_of(Sum("x", windows=["5d"]), ttl="2d")
    _, _, fetcher = ready(tmp_path / "longer", longer, events)
    got = fetcher.get(refs(longer), {"user": [3]}, NOW)
    assert got.statuses.to_pylist() == [{"sum_x_5d": "EXPIRED"}]
    assert got.to_pydict()["sum_x_5d"] == [None]


def test_an_ill_conditioned_value_is_null_with_its_status(tmp_path: Path) -> None:
    view = view_of(Variance("x", windows=["1h"]), Sum("x", windows=["1h"]))
    events = [click(1, NOW, 1e9), click(1, NOW, 1e9 + 1e-6), click(2, NOW, 1.0), click(2, NOW, 2.0)]
    _, _, fetcher = ready(tmp_path, view, events)
    got = fetcher.get(refs(view), {"user": [2, 1, 3]}, NOW + 1)
    assert got.to_pydict()["variance_x_1h"] == [0.25, None, None]
    assert got.statuses.to_pydict() == {
        "variance_x_1h": ["PRESENT", "ILL_CONDITIONED", "MISSING"],
        "sum_x_1h": ["PRESENT", "PRESENT", "MISSING"],
    }


def test_an_idle_source_is_not_stale_and_a_dead_materializer_is(tmp_path: Path) -> None:
    #  clock   0          30min       70min                  70min + 61min
    #          apply      pass        pass (nothing new)     dead: no pass any more
    view = view_of(Sum("x", windows=["1d"]), max_staleness="1h")
    clock = FakeClock()
    lake, store = TileLake(tmp_path, view), MemoryStore(clock)
    lake.commit([click(1, NOW), click(2, NOW)])
    materializer = lake.materializer(store, clock=clock)
    materializer.run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store, clock=clock)

    def status() -> str:
        got = fetcher.get(refs(view), {"user": [1]}, NOW + 1)
        assert got.to_pydict()["sum_x_1d"] == [1.0]
        found = got.statuses.to_pylist()[0]["sum_x_1d"]
        assert got.freshness["v"].stale == (found == "STALE")
        return str(found)

    clock.now_ms += 30 * MINUTE_MS
    materializer.run_once()
    clock.now_ms += 40 * MINUTE_MS
    assert status() == "PRESENT"
    materializer.run_once()
    clock.now_ms += 60 * MINUTE_MS
    assert status() == "PRESENT"
    clock.now_ms += 1
    assert status() == "STALE"


def test_freshness_is_the_worst_of_the_buckets_touched(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1d"]))
    lake, store, fetcher = ready(tmp_path, view, [click(u, NOW + u) for u in range(8)])
    half = lake.materializer(store, shard=(0, 2))
    lake.commit([click(u, NOW + 100 + u) for u in range(8)])
    half.run_once()
    both = fetcher.get(refs(view), {"user": list(range(8))}, NOW + 200).freshness["v"]
    assert both.applied_snapshot == 1
    one_bucket = [
        fetcher.get(refs(view), {"user": [u]}, NOW + 200).freshness["v"].applied_snapshot
        for u in range(8)
    ]
    assert set(one_bucket) == {1, 2}


# -- what is refused -----------------------------------------------------------------------


def test_a_time_before_what_is_kept_is_refused(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    _, _, fetcher = ready(tmp_path, view, [click(1, NOW)])
    oldest = NOW - view.compiled.margin_ms
    assert fetcher.get(refs(view), {"user": [1]}, oldest).statuses.num_rows == 1
    with pytest.raises(RequestError, match="get_historical_features"):
        fetcher.get(refs(view), {"user": [1]}, oldest - 1)
    with pytest.raises(RequestError, match="years 1 to 9999"):
        fetcher.get(refs(view), {"user": [1]}, 2**62)


def test_a_record_ahead_of_its_marker_is_not_read_below_what_it_kept(tmp_path: Path) -> None:
    # between a record's write and its bucket's marker, the record alone knows how it was pruned
    view = view_of(Sum("x", windows=["1h"]))
    lake, store, fetcher = ready(tmp_path, view, [click(1, NOW - DAY_MS), click(2, NOW - DAY_MS)])
    as_of_ms = NOW - DAY_MS + 1
    assert fetcher.get(refs(view), {"user": [1]}, as_of_ms).to_pydict()["sum_x_1h"] == [1.0]
    lake.commit([click(1, NOW)])
    markers = {k: store.get_many([k])[0] for page in store.scan(b"pf:") for k in page}
    lake.materializer(store).run_once()
    for key, value in markers.items():
        if key.endswith(b"#marker"):
            store.delete([key])
            assert value is not None
            store.compare_and_set_many([Write(key, None, value)])
    with pytest.raises(RequestError, match="before the newest applied event"):
        fetcher.get(refs(view), {"user": [1]}, as_of_ms)


def test_an_old_time_is_refused_once_records_may_have_left(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    clock = FakeClock(NOW + 400 * DAY_MS)  # a replay: events are much older than the clock
    _, store, fetcher = ready(tmp_path, view, [click(1, NOW)], clock=clock)
    kept_ms = expire_after_ms(view.compiled)
    assert kept_ms is not None
    clock.now_ms += kept_ms - 2 * HOUR_MS
    assert fetcher.get(refs(view), {"user": [1]}, NOW + 1).to_pydict()["sum_x_1h"] == [1.0]
    clock.now_ms += 2 * HOUR_MS
    assert [k for page in store.scan(b"pf:") for k in page if b"}:" in k] == []
    with pytest.raises(RequestError, match="may have left.*--rebuild"):
        fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    # at the clock the answer is right without the record
    got = fetcher.get(refs(view), {"user": [1]}, clock.now_ms)
    assert got.statuses.to_pylist() == [{"sum_x_1h": "MISSING"}]


def test_a_lifetime_never_leaves(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=[None]))
    clock = FakeClock(NOW + 400 * DAY_MS)
    _, _, fetcher = ready(tmp_path, view, [click(1, NOW)], clock=clock)
    assert expire_after_ms(view.compiled) is None
    clock.now_ms += 4000 * DAY_MS
    for as_of_ms in (NOW + 1, clock.now_ms):
        assert fetcher.get(refs(view), {"user": [1]}, as_of_ms).to_pydict()["sum_x"] == [1.0]


def test_a_store_without_the_view_is_not_ready(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    fetcher = FeatureFetcher(PROJECT, [view.compiled], MemoryStore())
    with pytest.raises(StoreNotReadyError, match="materialize v"):
        fetcher.get(refs(view), {"user": [1]}, NOW)


def test_an_emptied_store_is_not_ready_until_it_is_rebuilt(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    lake, store, fetcher = ready(tmp_path, view, [click(1, NOW)])
    fetcher.get(refs(view), {"user": [1]}, NOW)
    store.restart(keep=False)
    with pytest.raises(StoreNotReadyError):
        fetcher.get(refs(view), {"user": [1]}, NOW)
    lake.materializer(store).run_once()
    assert fetcher.get(refs(view), {"user": [1]}, NOW + 1).to_pydict()["sum_x_1h"] == [1.0]


def test_a_lost_marker_is_not_ready_never_missing(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    _, store, fetcher = ready(tmp_path, view, [click(u, NOW) for u in range(8)])
    markers = [k for page in store.scan(b"pf:") for k in page if k.endswith(b"#marker")]
    store.delete(markers[:1])
    with pytest.raises(StoreNotReadyError, match="lost.*#marker"):
        fetcher.get(refs(view), {"user": list(range(8))}, NOW + 1)


def test_another_definition_than_the_materialized_one_is_not_ready(tmp_path: Path) -> None:
    _, store, _ = ready(tmp_path, view_of(Sum("x", windows=["1h"])), [click(1, NOW)])
    other = view_of(Sum("x", windows=["1h", "1d"]))
    fetcher = FeatureFetcher(PROJECT, [other.compiled], store)
    with pytest.raises(StoreNotReadyError, match="another definition"):
        fetcher.get(refs(other), {"user": [1]}, NOW)


def test_names_that_are_not_there_are_reported_with_those_that_are(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    _, _, fetcher = ready(tmp_path, view, [click(1, NOW)])
    with pytest.raises(UnknownNameError, match="unknown feature view 'w'; available: v"):
        fetcher.get([FeatureRef("w", "a")], {"user": [1]}, NOW)
    with pytest.raises(UnknownNameError, match="'v:sum_y'; available: v:sum_x_1h"):
        fetcher.get([FeatureRef("v", "sum_y")], {"user": [1]}, NOW)
    with pytest.raises(RequestError, match="no feature"):
        fetcher.get([], {"user": [1]}, NOW)
    with pytest.raises(RequestError, match="twice"):
        fetcher.get(refs(view) * 2, {"user": [1]}, NOW)


# -- several views, and epochs that change -------------------------------------------------


class CountingStore(MemoryStore):
    """Counts reads, and lets something happen right before one of them."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.reads = 0
        self.before_read: dict[int, Any] = {}

    def get_many(self, keys: Any) -> Any:
        self.reads += 1
        self.before_read.pop(self.reads, lambda: None)()
        return super().get_many(keys)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([{"user": 1}], NOW), "entities is a list; expected a mapping of each key column"),
        ((None, NOW), "entities is a NoneType; expected a mapping"),
        (({"user": [1]}, "now"), "as_of_ms='now': expected an integer"),
        (({"user": [1]}, 1.5), "as_of_ms=1.5: expected an integer"),
        (({"user": [1]}, NOW, [1]), "request is a list; expected a mapping of each request input"),
    ],
)
def test_arguments_of_other_types_are_errors(
    tmp_path: Path, arguments: tuple[Any, ...], error: str
) -> None:
    view = view_of(Count(windows=["1h"]))
    _, _, fetcher = ready(tmp_path, view, [click(1, NOW - 1)])
    with pytest.raises(RequestError, match=error):
        fetcher.get(refs(view), *arguments)


def test_several_views_are_read_in_one_command(tmp_path: Path) -> None:
    spend = view_of(Sum("x", windows=["1h"]), name="spend")
    visits = view_of(Count(windows=["1d"]), Sum("x", windows=["1h"]), name="visits")
    store = CountingStore()
    for view in (spend, visits):
        lake = TileLake(tmp_path / view.name, view)
        lake.commit([click(1, NOW, 3.0), click(1, NOW - 2 * HOUR_MS, 4.0)])
        lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [spend.compiled, visits.compiled], store)
    fetcher.get(refs(spend) + refs(visits), {"user": [1]}, NOW + 1)
    store.reads = 0
    got = fetcher.get(refs(spend) + refs(visits), {"user": [1, 9]}, NOW + 1)
    assert store.reads == 1
    assert got.to_pydict() == {
        "user": [1, 9],
        "spend__sum_x_1h": [3.0, None],
        "count_1d": [2, None],
        "visits__sum_x_1h": [3.0, None],
    }
    assert set(got.freshness) == {"spend", "visits"}
    assert pa.table(got).equals(got.table)


def test_a_switch_of_epochs_during_a_request_is_seen(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    store = CountingStore()
    lake = TileLake(tmp_path, view)
    lake.commit([click(1, NOW, 3.0)])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    fetcher.get(refs(view), {"user": [1]}, NOW + 1)

    def rebuild() -> None:
        lake.commit([click(1, NOW, 4.0)])
        lake.materializer(store).rebuild()

    store.before_read[store.reads + 1] = rebuild  # the old epoch is deleted when it is read
    got = fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    assert got.to_pydict()["sum_x_1h"] == [7.0]


class TwoNodes(CountingStore):
    """As a cluster may answer: the states as they were, the buckets after ``between``."""

    between: Callable[[], None] | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        states = [key for key in keys if key.endswith(b"#state")]
        if self.between is None or len(states) == len(keys):
            return super().get_many(keys)
        found = dict(zip(states, super().get_many(states), strict=True))
        self.between()
        others = [key for key in keys if key not in found]
        found |= dict(zip(others, super().get_many(others), strict=True))
        return [found[key] for key in keys]


def test_a_switch_and_a_sweep_between_the_replies_of_two_nodes_are_seen(tmp_path: Path) -> None:
    #  node of the state    epoch a ---reply---  epoch b
    #  node of the bucket   epoch a -----------  swept ---reply---
    view = view_of(Sum("x", windows=["1h"]))
    store = TwoNodes()
    lake = TileLake(tmp_path, view)
    lake.commit([click(1, NOW, 3.0)])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    before = store.reads
    fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    assert store.reads == before + 1  # nothing is read twice as long as nothing is missing

    def rebuild() -> None:
        store.between = None
        lake.commit([click(1, NOW, 4.0)])
        lake.materializer(store).rebuild()

    store.between = rebuild
    got = fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    assert got.to_pydict()["sum_x_1h"] == [7.0]
    # a marker that is lost although nothing was switched is reported as lost at once
    store.delete([key for page in store.scan(b"pf:") for key in page if b"#marker" in key])
    before = store.reads
    with pytest.raises(StoreNotReadyError, match="lost"):
        fetcher.get(refs(view), {"user": [1]}, NOW + 1)
    assert store.reads == before + 2


def test_epochs_that_never_stand_still_are_an_error(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    store = CountingStore()
    lake = TileLake(tmp_path, view)
    lake.commit([click(1, NOW, 3.0)])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    keys = ViewKeys(PROJECT, view.name)
    raw = store.get_many([keys.state])[0]
    assert raw is not None
    state = ViewState.from_bytes(raw)
    numbers = iter(range(1000))

    def flip() -> None:
        MemoryStore.delete(store, [keys.state])
        other = replace(state, epoch=f"{next(numbers):08x}").to_bytes()
        MemoryStore.compare_and_set_many(store, [Write(keys.state, None, other)])

    store.before_read = {store.reads + i: flip for i in range(1, 50)}
    with pytest.raises(OnlineStoreError):
        fetcher.get(refs(view), {"user": [1]}, NOW + 1)
