"""Kinds of windows, offsets and calendar units as the online store answers them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Sum
from paimon_features.online.store import MemoryStore
from paimon_features.online.store.expiry import READ_BEHIND_MS, expire_after_ms
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.sizes import seeds
from tests.generators import random_view
from tests.tile_lake import PROJECT, TileLake

SOURCE = EventSource("clicks", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS
M = MINUTE_MS


def view_of(*features: Any, **options: Any) -> FeatureView:
    user = Entity("user", keys={"user": Int64})
    return FeatureView("v", source=SOURCE, entity=user, features=features, **options)


def read(folder: Path, view: FeatureView, times: list[int], *as_of_ms: int) -> list[dict[str, Any]]:
    """Features of a user with one event at each time, at each ``q``; None where he is MISSING."""
    lake, store = TileLake(folder, view), MemoryStore(lambda: NOW)
    lake.commit([{"user": 1, "t": t, "x": 1.0} for t in times])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store, clock=lambda: NOW)
    refs = [FeatureRef("v", f.name) for f in view.compiled.features]
    return [fetcher.get(refs, {"user": [1]}, q).table.to_pylist()[0] for q in as_of_ms]


def test_exact_windows_over_tiles_are_refused_with_what_to_do(tmp_path: Path) -> None:
    view = view_of(Count(windows=["1h"]), kind="exact")
    lake, store = TileLake(tmp_path, view), MemoryStore()
    reported = "exact windows over tiles of 300000 ms.* tile='1ms', or choose kind='hop'"
    with pytest.raises(RequestError, match=reported):
        lake.materializer(store)
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    with pytest.raises(RequestError, match=reported):
        fetcher.get([FeatureRef("v", "count_1h")], {"user": [1]}, NOW)


def test_exact_windows_over_single_events_are_read_to_the_millisecond(tmp_path: Path) -> None:
    view = view_of(Count(windows=["1h"]), kind="exact", tile="1ms")
    #  the window is [q - 1h, q): at one end an event goes as the next comes in at the other
    got = read(tmp_path, view, [NOW, NOW + HOUR_MS], NOW, NOW + 1, NOW + HOUR_MS, NOW + HOUR_MS + 1)
    assert [row["count_1h"] for row in got] == [None, 1, 1, 1]


def test_a_hop_window_does_not_see_the_open_tile(tmp_path: Path) -> None:
    #  tiles      [12:00---------)[12:05---------)
    #  events          12:04           12:07
    #  q                            12:06  12:09:59.999  12:10
    view = view_of(
        Count(windows=["1h"]), DecayedSum("x", half_life="1h", windows=["1h"]), kind="hop"
    )
    times = [NOW + 4 * M, NOW + 7 * M]
    got = read(tmp_path, view, times, NOW + 6 * M, NOW + 10 * M - 1, NOW + 10 * M)
    assert [row["count_1h"] for row in got] == [1, 1, 2]
    # it changes at hops only, decay and all
    assert got[0] == got[1]
    assert got[0]["decayed_sum_x_h1h_1h"] == pytest.approx(2 ** (-1 / 60), rel=1e-12)


def test_with_hop_windows_an_entity_is_known_from_the_next_hop_on(tmp_path: Path) -> None:
    view = view_of(Count(windows=["1h"]), kind="hop")
    got = read(tmp_path, view, [NOW + 1], NOW + 2, NOW + 5 * M, NOW + HOUR_MS + 5 * M)
    assert [row["count_1h"] for row in got] == [None, 1, None]


def test_an_offset_ends_the_window_at_a_border_of_tiles(tmp_path: Path) -> None:
    #  event at 12:00; with an offset of 1h it is in from 13:05 on: its tile must have ended
    view = view_of(Count(windows=["1h"]), Count(windows=["1h"], offset="1h"))
    moments = [HOUR_MS + 5 * M - 1, HOUR_MS + 5 * M, 2 * HOUR_MS + 5 * M - 1, 2 * HOUR_MS + 5 * M]
    got = read(tmp_path, view, [NOW], *(NOW + after for after in moments))
    assert [row["count_1h_offset_1h"] for row in got] == [0, 1, 1, None]


def test_with_offsets_alone_an_entity_is_known_only_when_a_window_can_see_it(
    tmp_path: Path,
) -> None:
    view = view_of(Count(windows=["1h"], offset="1h"), ttl="30min")
    moments = [HOUR_MS + 5 * M - 1, HOUR_MS + 5 * M, HOUR_MS + 30 * M, HOUR_MS + 35 * M]
    got = read(tmp_path, view, [NOW], *(NOW + after for after in moments))
    # an age is counted from the end of what is seen, or all would be older than the ttl
    assert [row["count_1h_offset_1h"] for row in got] == [None, 1, 1, None]


def test_today_begins_at_midnight_in_the_time_zone(tmp_path: Path) -> None:
    #  14 November 2023, New York at UTC - 5: the day begins at 05:00 UTC
    midnight = NOW - 7 * HOUR_MS
    view = view_of(
        Count(windows=["today", "this_month"]), Sum("x", windows=["today"], offset="1d"),
        time_zone="America/New_York",
    )  # fmt: skip
    times = [midnight - 1, midnight, midnight + HOUR_MS]
    got = read(tmp_path, view, times, midnight + M, NOW, midnight + DAY_MS)
    assert [row["count_today"] for row in got] == [1, 2, 0]
    assert [row["count_this_month"] for row in got] == [2, 3, 3]
    # yesterday up to this time, one day ago
    assert [row["sum_x_today_offset_1d"] for row in got] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", seeds(60))
def test_a_record_stays_as_long_as_a_read_at_the_clock_can_need_it(seed: int) -> None:
    rng = random.Random(seed)
    compiled = random_view(rng).compiled
    kept_ms = expire_after_ms(compiled)
    if kept_ms is None:
        assert compiled.has_lifetime
        return
    for _ in range(20):
        written = rng.randrange(-(10**12), 10**12) // M * M
        newest = written + compiled.source.max_skew_ms  # no event is further ahead of the clock
        first_read = written + kept_ms - READ_BEHIND_MS - HOUR_MS
        assert compiled.known_from(first_read) > newest
        assert all(w.start(first_read) > newest for w in compiled.windows)
