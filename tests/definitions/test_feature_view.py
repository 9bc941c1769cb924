"""What a feature view is worked out to, and which ones are refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import calendar_time
from paimon_features.core.times.zones import Transitions
from paimon_features.core.types.schema import Decimal, Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import (
    Any as AnyOf,
)
from paimon_features.definitions.aggregates import (
    Count,
    DecayedMean,
    DecayedSum,
    LastN,
    Max,
    Mean,
    Min,
    Quantile,
    StdDev,
    Sum,
)
from paimon_features.testing.sizes import seeds
from tests.generators import random_view

SOURCE = EventSource(
    "shop", schema={"user_id": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user_id": Int64})


def view(**changes: Any) -> FeatureView:
    given: dict[str, Any] = {
        "source": SOURCE, "entity": USER, "tile": "5min", "features": [Count(windows=["1h"])]
    }  # fmt: skip
    return FeatureView("spend", **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": []}, "feature view 'spend' has no features"),
        ({"tile": "7min"}, "tile='7min' does not divide a day"),
        ({"tile": "5 minutes"}, "duration '5 minutes': expected a positive integer"),
        ({"features": [Count(windows=["1min"])]}, "a window of 1min is shorter than the tile"),
        ({"features": [Count(windows=["1h"])] * 2}, "two features are named 'count_1h'"),
        ({"features": [Count(name="user_id")]}, "the feature 'user_id' has the name of a key"),
        ({"features": [Sum("word")]}, "the column is String; expected a number"),
        ({"features": [Sum("total")]}, r"unknown column 'total'; available: "),
        ({"derive": {"x": "1"}}, "derive: the column 'x' exists already"),
        ({"derive": {"y": "x + word"}}, "word"),
        ({"where": "x"}, "where='x' is Float64; expected a condition"),
        ({"where": "y > 1"}, "y"),
        ({"kind": "sliding"}, "kind='sliding'; expected 'sawtooth', 'hop', 'exact'"),
        ({"kind": "exact", "resolution": {"1h": "10min"}}, "exact windows have no hops"),
        ({"features": [Count(windows=["today"])]}, "give the view a time_zone=, for example"),
        ({"time_zone": "Europe/Londno"}, "not in the IANA .* did you mean 'Europe/London'"),
        ({"time_zone": "../etc/passwd"}, "not in the IANA database"),
        ({"time_zone": "Europe"}, "not in the IANA database"),
        ({"time_zone": ""}, "not in the IANA database"),
        ({"buckets": 0}, "buckets=0; expected >= 1"),
        ({"tile": "5min", "resolution": {"1h": "7min"}}, "does not divide the next one"),
        (
            {"features": [DecayedSum("x", half_life="100ms")], "tile": "1d"},
            "below a 500th of the tile",
        ),
        (
            {"entity": Entity("user", keys={"shop_id": Int64})},
            "key of entity 'user': unknown column 'shop_id' of source 'shop'",
        ),
        (
            {"entity": Entity("user", keys={"word": Int64})},
            "key 'word' is String in source 'shop' and Int64 in entity 'user'",
        ),
    ],
)
def test_an_invalid_view_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        view(**changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"windows": ["yesterday"]},
            "neither a calendar unit .today, this_week, .* nor a duration",
        ),
        ({"windows": ["999999999d"]}, "longer than the years 1 to 9999"),
        ({"windows": "1h"}, "expected a list of durations and calendar units"),
        ({"windows": ["today", "1h", "today"]}, "names a window twice"),
        ({"offset": "soon"}, "duration 'soon': expected a positive integer"),
    ],
)
def test_invalid_windows_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Count(**options)


def test_equal_partials_are_stored_once_and_all_their_bounds_apply() -> None:
    features = [Mean("x", scale=2, bound=100), Sum("x", scale=2), Count("x"), Min("x", scale=2)]
    compiled = view(features=features).compiled
    assert [p.name for p in compiled.partials] == [
        "p_event_time_max", "p_rows", "p_count_x", "p_min_x_s2", "p_sum_x_s2",
    ]  # fmt: skip
    bounds = [rule.detail for rule in compiled.skip_rules if rule.reason == "out_of_bounds"]
    # an exact sum needs room for others, a minimum only for itself
    assert bounds == ["|x| > 22517998136852.48", "|x| > 100", "|x| > 92233720.36"]


def test_several_half_lives_and_shares_are_features_from_shared_partials() -> None:
    features = [
        DecayedSum("x", half_life=["1h", "1d"], windows=["7d"]),
        DecayedMean("x", half_life=["1h", "1d"], windows=["7d"], name="level"),
        Quantile("x", q=[0.5, 0.999], edges=[0, 1], windows=["7d"]),
    ]
    compiled = view(features=features).compiled
    assert [f.name for f in compiled.features] == [
        "decayed_sum_x_h1h_7d", "decayed_sum_x_h1d_7d", "level_h1h_7d", "level_h1d_7d",
        "quantile_x_p50_7d", "quantile_x_p99_9_7d",
    ]  # fmt: skip
    decayed = [p.name for p in compiled.partials if "decayed" in p.name]
    assert decayed == [
        "p_decayed_count_x_h1d", "p_decayed_count_x_h1h",
        "p_decayed_sum_x_h1d", "p_decayed_sum_x_h1h",
    ]  # fmt: skip
    assert sum(p.name.startswith("p_bin_x") for p in compiled.partials) == 3


def test_another_length_of_a_list_needs_no_other_tiles_but_other_records() -> None:
    short, both = (
        view(features=[LastN("word", n=n, windows=["1h"]) for n in lengths]).compiled
        for lengths in ((3,), (3, 7))
    )
    assert short.partial["p_last_n_word"].limit == 3
    assert both.partial["p_last_n_word"].limit == 7
    assert short.fingerprint == both.fingerprint
    assert short.online_fingerprint != both.online_fingerprint


def test_an_event_for_which_a_condition_overflows_is_skipped() -> None:
    some = AnyOf(condition="user_id * user_id > 4", name="some")
    rules = [r for r in view(features=[some]).compiled.skip_rules if r.reason == "overflow"]
    assert [rule.detail for rule in rules] == ["where: user_id * user_id > 4"]


def test_two_centers_are_two_partials() -> None:
    features = [StdDev("x", center=1.0, windows=["1h"]), StdDev("x", name="raw", windows=["1h"])]
    names = {p.name for p in view(features=features).compiled.partials}
    assert {"p_square_x", "p_square_x_c1p0"} <= names


def test_levels_are_the_tile_the_hops_and_the_steps_between() -> None:
    #  window  1h      12h      12d
    #  hop     5min    1h       1d
    compiled = view(features=[Count(windows=["1h", "12h", "12d"])], tile="1min").compiled
    assert compiled.levels_ms == (MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS)
    assert {f.name: f.hop_ms for f in compiled.features} == {
        "count_1h": 5 * MINUTE_MS, "count_12h": HOUR_MS, "count_12d": DAY_MS,
    }  # fmt: skip


def test_the_name_of_a_feature_contains_its_window_and_offset() -> None:
    features = [Count(windows=["1h", "today", None], offset="90min"), Count(windows=["this_week"])]
    assert [f.name for f in view(features=features, time_zone="UTC").compiled.features] == [
        "count_1h_offset_90min", "count_today_offset_90min", "count_offset_90min",
        "count_this_week",
    ]  # fmt: skip


def test_a_lifetime_begins_with_the_coarsest_cells_and_in_a_hop_view_ends_at_a_tile() -> None:
    features = [Count(windows=["12d", None])]
    for kind, hops in (("sawtooth", [DAY_MS, DAY_MS]), ("hop", [DAY_MS, 5 * MINUTE_MS])):
        compiled = view(features=features, kind=kind).compiled
        assert [f.hop_ms for f in compiled.features] == hops
        assert [f.level for f in compiled.features] == [2, 2]


def test_calendar_windows_begin_with_cells_of_the_zones_step() -> None:
    #  zone   London  Kathmandu  UTC    UTC, up to the last hop
    #  step   1h      15min      1d     1h
    for zone, kind, step in (
        ("Europe/London", "sawtooth", HOUR_MS), ("Asia/Kathmandu", "sawtooth", 15 * MINUTE_MS),
        ("UTC", "sawtooth", DAY_MS), ("UTC", "hop", HOUR_MS),
    ):  # fmt: skip
        features = [Count(windows=["today"])]
        compiled = view(features=features, kind=kind, time_zone=zone).compiled
        assert compiled.features[0].hop_ms == compiled.levels_ms[-1] == step
    coarse = view(features=features, time_zone="Asia/Kathmandu", tile="1h").compiled
    assert coarse.features[0].hop_ms == HOUR_MS


def test_a_resolution_replaces_the_hops() -> None:
    compiled = view(features=[Count(windows=["1h", "7d"])], resolution={"1d": "6h"}).compiled
    assert [f.hop_ms for f in compiled.features] == [5 * MINUTE_MS, 6 * HOUR_MS]


@pytest.mark.parametrize("seed", seeds(60))
def test_the_cells_that_are_kept_cover_every_window_that_may_be_read(seed: int) -> None:
    rng = random.Random(seed)
    compiled = random_view(rng).compiled
    high_ms = rng.randrange(-(10**12), 2 * 10**12)
    for _ in range(20):
        q = high_ms - compiled.margin_ms + rng.choice((0, 1, HOUR_MS, 40 * DAY_MS))
        for feature in compiled.features:
            #  kept, top   [------------)[------------)[------------)
            #  kept, below                              [---)[---)[---)
            #  window              [--------------------------------- end
            start, end = feature.window.bounds(q)
            if feature.window.length is not None:
                assert compiled.keep_from(feature.level, high_ms) <= start
            else:  # the lifetime cell must not hold what comes after the window
                top = compiled.levels_ms[-1]
                assert compiled.keep_from(feature.level, high_ms) <= end // top * top
            for level in range(feature.level):
                above = compiled.levels_ms[level + 1]
                assert compiled.keep_from(level, high_ms) <= end // above * above


@pytest.mark.parametrize("seed", seeds(60))
def test_bounds_of_a_view_are_those_of_its_windows(seed: int) -> None:
    rng = random.Random(seed)
    compiled = random_view(rng, offline_only=True).compiled
    q = np.array([rng.randrange(-(10**13), 10**13) // 60_000 * 60_000 for _ in range(300)])
    starts = np.array([w.start(q) for w in compiled.windows])
    horizon = np.array([w.end(q) for w in compiled.windows]).max(axis=0)
    assert (compiled.horizon(q) == horizon).all()
    if compiled.ttl_ms is not None:
        starts = np.append(starts, [horizon - compiled.ttl_ms], axis=0)
    assert (compiled.known_from(q) == starts.min(axis=0)).all()
    assert [compiled.horizon(int(t)) for t in q] == horizon.tolist()
    assert [compiled.known_from(int(t)) for t in q] == starts.min(axis=0).tolist()
    for window in compiled.windows:
        start, end = window.bounds(q)
        assert (start <= end).all()
        assert (end > q - window.lag_ms).all()
        assert window.reach_ms is None or (start > q - window.reach_ms).all()


def test_known_from_is_the_start_of_the_longest_window_or_of_the_ttl() -> None:
    q = np.array([1_300_000_000_123])
    features = [Count(windows=["1h", "12d"])]
    assert view(features=features).compiled.known_from(q) == (q - 12 * DAY_MS) // DAY_MS * DAY_MS
    assert view(features=features, ttl="60d").compiled.known_from(q) == q - 60 * DAY_MS


def test_fingerprints_distinguish_new_tiles_from_new_cells() -> None:
    plain = view().compiled
    for changes in ({"tile": "1h"}, {"where": "x > 0"}, {"buckets": 4}, {"features": [Sum("x")]}):
        assert view(**changes).compiled.fingerprint != plain.fingerprint, changes
    for changes in ({"features": [Count(windows=["1h", "1d"])]}, {"ttl": "1d"}):
        changed = view(**changes).compiled
        assert changed.fingerprint == plain.fingerprint
        assert changed.online_fingerprint != plain.online_fingerprint
    for changes in (
        {"description": "x"},
        {"max_staleness": "1s"},
        {"features": [Count(windows=["1h"], name="n")]},
        {"features": [Count(windows=["1h"]), Count(windows=["1h"], name="n")]},
    ):
        assert view(**changes).compiled.online_fingerprint == plain.online_fingerprint


def test_a_maximum_alone_bounds_nothing_that_fits_its_type() -> None:
    source = EventSource("s", schema={"user_id": Int64, "t": Int64, "n": Int64}, event_time="t")
    rules = view(source=source, features=[Max("n")]).compiled.skip_rules
    assert [rule.reason for rule in rules] == ["null_key", "absurd_time"]
    columns = {"user_id": Int64, "t": Int64, "x": Float64, "price": Decimal(15, 2), "w": String}
    source = EventSource("s", schema=columns, event_time="t")
    features = [Max("x"), Min("price"), Max("w")]
    rules = view(source=source, features=features).compiled.skip_rules
    assert [rule.detail for rule in rules] == ["user_id", "t", "x is not finite"]


def test_other_clock_changes_of_a_zone_are_another_definition_of_what_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derive = {"h": "hour(t, 'Europe/Madrid')"}
    features = [Max("h", windows=["1h"]), Count(windows=["1h"])]
    before = view(derive=derive, features=features).compiled.tile_contents
    numbers = Transitions((0,), (0, HOUR_MS))
    monkeypatch.setattr(calendar_time, "transitions", lambda _: numbers)
    after = view(derive=derive, features=features).compiled.tile_contents
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if "h" in name.split("_")}
    assert changed
