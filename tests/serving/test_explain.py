"""What is explained adds up to what is served, for every aggregate and kind of window."""

from __future__ import annotations

import base64
import functools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import (
    OnlineStoreError,
    RequestError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import (
    CompiledFeature,
    Entity,
    EventSource,
    FeatureRef,
    FeatureView,
)
from paimon_features.definitions.aggregates import (
    Count,
    DecayedSum,
    Last,
    Max,
    Merge,
    Partial,
    Reading,
    Sum,
)
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.explain import explain, plain
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.features import entered, window_of
from paimon_features.testing.reference.merges import merged
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import seeds
from tests import generators
from tests.tile_lake import PROJECT, TileLake

SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS


def filled(folder: Path, view: FeatureView, events: list[dict[str, Any]]) -> FeatureFetcher:
    store = MemoryStore()
    lake = TileLake(folder, view)
    lake.commit(events)
    lake.materializer(store).run_once()
    return FeatureFetcher(PROJECT, [view.compiled], store)


def click(user: int, t: int, x: float = 1.0, word: str = "w") -> dict[str, Any]:
    return {"user": user, "t": t, "x": x, "word": word}


def view_of(*features: Any, **options: Any) -> FeatureView:
    return FeatureView("v", source=SOURCE, entity=USER, features=features, **options)


# -- what is explained is what is served ---------------------------------------------------


@pytest.mark.parametrize("seed", seeds(8))
def test_the_cells_of_every_feature_add_up_to_what_is_served(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    events = random_events(rng, view, 60)
    fetcher = filled(tmp_path, view, event_rows(events))
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    keys, times = generators.random_rows(rng, view, events, 12)
    known = [e for e in event_rows(events) if None not in (e[k] for k in view.entity.keys)]
    high_ms = max(e["t"] for e in known)
    for entity, t in zip(event_rows(keys), times, strict=True):
        if None in entity.values():
            continue
        as_of_ms = rng.choice((max(t, high_ms), high_ms + rng.choice((0, 1, 60_000, DAY_MS))))
        document = explain(fetcher, view.name, entity, as_of_ms)
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        got = fetcher.get(refs, {k: [v] for k, v in entity.items()}, as_of_ms)
        values, statuses = got.table.to_pylist()[0], got.statuses.to_pylist()[0]
        own = entered(view, [e for e in known if all(e[k] == v for k, v in entity.items())])
        for feature, reported in zip(view.compiled.features, document["features"], strict=True):
            at = (seed, entity, as_of_ms, feature.name)
            assert reported["value"] == plain(values[feature.name]), at
            assert reported["status"] == statuses[feature.name], at
            window = window_of(view, feature, own, as_of_ms, online=True)
            if view.source.retraction is None and feature.aggregate.where is None:
                assert reported["events"] == len(window.rows), at
            if reported["status"] in ("PRESENT", "STALE"):
                assert close(from_cells(view, feature, document, reported), reported["value"]), at


def from_cells(view: FeatureView, feature: CompiledFeature, document: Any, reported: Any) -> Any:
    """The value of a feature from the document alone, its cells merged in plain Python."""
    tile_ms = view.compiled.tile_ms
    cells = [document["cells"][share["cell"]]["partials"] for share in reported["cells"]]
    ends = [c["p_event_time_max"] // tile_ms * tile_ms + tile_ms for c in cells]
    newest = max(ends, default=-(2**62) // tile_ms * tile_ms + tile_ms)
    columns = []
    for name in feature.partials:
        partial = view.compiled.partial[name]
        values = [_weighed(partial, _stored(partial, c[name]), newest - end)
                  for c, end in zip(cells, ends, strict=True)]  # fmt: skip
        whole = functools.reduce(functools.partial(merged, partial), values, None)
        kind = {"int64": np.int64, "float64": np.float64}.get(partial.type.text, np.object_)
        slot = np.empty(1, kind)
        slot[0] = (0 if kind is not np.object_ else None) if whole is None else whole
        columns.append(Column(slot, np.array([whole is not None])))
    read_ms = feature.window.read_time(document["as_of_ms"])
    length = feature.window_ms if feature.aggregate.by_length else None
    reading = Reading(np.array([read_ms]), np.array([read_ms - newest]), length)
    done = feature.aggregate.finish(view.compiled.scope, columns, reading)
    return plain(done.column.to_arrow(feature.type.arrow).to_pylist()[0])


def _weighed(partial: Partial, value: Any, age_ms: int) -> Any:
    if value is None or partial.merge is not Merge.DECAYED_SUM:
        return value
    assert partial.half_life_ms is not None
    return value * 2.0 ** (-age_ms / partial.half_life_ms)


def _stored(partial: Partial, value: Any) -> Any:
    return base64.b64decode(value) if value and partial.type.text == "bytes" else value


def close(left: Any, right: Any) -> bool:
    """Equal, but for the last bits of sums of floats, which were added in another order."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-6 * max(1.0, abs(left)))
    return bool(left == right)


# -- the document --------------------------------------------------------------------------


def test_a_window_is_reported_with_its_cells_on_every_level(tmp_path: Path) -> None:
    #  1 h   [10:00=====)[11:00=====)
    #  5min                          [12:00)[12:05~~
    view = view_of(Sum("x", windows=["12h"]))
    times = [NOW - 2 * HOUR_MS, NOW - HOUR_MS + 1, NOW + MINUTE_MS, NOW + 6 * MINUTE_MS]
    fetcher = filled(tmp_path, view, [click(7, t, 2.0**i) for i, t in enumerate(times)])
    as_of_ms = NOW + 7 * MINUTE_MS
    document = explain(fetcher, "v", {"user": 7}, as_of_ms, features=["sum_x_12h"])
    [feature] = document["features"]
    used = [document["cells"][share["cell"]] for share in feature["cells"]]
    assert [(c["level"], c["start_ms"] - NOW, c["end_ms"] - NOW) for c in used] == [
        (0, 0, 5 * MINUTE_MS),
        (0, 5 * MINUTE_MS, 10 * MINUTE_MS),
        (1, -2 * HOUR_MS, -HOUR_MS),
        (1, -HOUR_MS, 0),
    ]
    assert [share["alone"] for share in feature["cells"]] == [4.0, 8.0, 1.0, 2.0]
    assert (feature["value"], feature["status"], feature["events"]) == (15.0, "PRESENT", 4)
    assert (feature["start_ms"], feature["end_ms"]) == (NOW - 12 * HOUR_MS, as_of_ms)
    assert feature["sentence"] == (
        "sum_x_12h is 15, from 4 events in 2 cells of 5min and 2 cells of 1h; the window of 12h "
        "begins at a multiple of 1h, rounded down."
    )
    record = document["record"]
    assert (record["applied_snapshot"], record["generation"], record["incarnation"]) == (1, 1, 0)
    assert record["event_high_ms"] == document["event_time_ms"] == times[-1]
    assert record["size_bytes"] > 56
    assert document["freshness"]["applied_snapshot"] == 1


def test_a_decayed_share_is_what_is_left_of_it_at_the_time_of_the_read(tmp_path: Path) -> None:
    view = view_of(DecayedSum("x", half_life="1h", windows=["1d"]))
    fetcher = filled(tmp_path, view, [click(7, NOW - HOUR_MS, 4.0), click(7, NOW, 1.0)])
    [feature] = explain(fetcher, "v", {"user": 7}, NOW + HOUR_MS)["features"]
    assert sorted(share["alone"] for share in feature["cells"]) == pytest.approx([0.5, 1.0])
    assert feature["value"] == pytest.approx(1.5)


def test_a_lifetime_is_reported_with_the_cell_that_is_never_pruned(tmp_path: Path) -> None:
    view = view_of(Count(windows=[None]), Count(windows=["1d"]))
    old = NOW - 400 * DAY_MS
    fetcher = filled(tmp_path, view, [click(7, old), click(7, NOW)])
    document = explain(fetcher, "v", {"user": 7}, NOW + 1, features=["count"])
    [feature] = document["features"]
    assert feature["start_ms"] is None
    used = [document["cells"][share["cell"]] for share in feature["cells"]]
    [lifetime] = [cell for cell in used if cell["level"] is None]
    assert lifetime["start_ms"] is None
    assert old < lifetime["end_ms"] <= NOW
    assert (lifetime["events"], feature["value"]) == (1, 2)
    assert "the lifetime cell" in feature["sentence"]
    assert "no beginning" in feature["sentence"]


def test_calendar_hop_and_delayed_windows_say_what_they_are(tmp_path: Path) -> None:
    view = view_of(
        Count(windows=["today"]), Count(windows=["1h"], offset="1h"), kind="hop",
        time_zone="America/New_York",
    )  # fmt: skip
    fetcher = filled(tmp_path, view, [click(7, NOW)])
    today, delayed = explain(fetcher, "v", {"user": 7}, NOW + 90 * MINUTE_MS)["features"]
    assert (today["kind"], today["calendar"], today["window"]) == ("hop", True, "today")
    assert "America/New_York" in today["sentence"]
    assert (delayed["calendar"], delayed["offset_ms"]) == (False, HOUR_MS)
    assert "ends 1h before the time of the read" in delayed["sentence"]


def test_an_unknown_or_expired_entity_has_no_value_and_the_reason_is_reported(
    tmp_path: Path,
) -> None:
    view = view_of(Max("x", windows=["7d"]), Last("word", windows=["7d"]), ttl="1d")
    fetcher = filled(tmp_path, view, [click(1, NOW), click(2, NOW - 2 * DAY_MS)])
    unknown = explain(fetcher, "v", {"user": 99}, NOW + 1)
    assert (unknown["record"], unknown["cells"], unknown["event_time_ms"]) == (None, [], None)
    assert {f["status"] for f in unknown["features"]} == {"MISSING"}
    assert "No event of this entity" in unknown["features"][0]["sentence"]
    expired = explain(fetcher, "v", {"user": 2}, NOW + 1)
    assert [(f["value"], f["status"]) for f in expired["features"]] == [(None, "EXPIRED")] * 2
    assert "ttl of 1d" in expired["features"][0]["sentence"]
    assert expired["cells"]


def test_what_the_store_says_later_does_not_mix_in(tmp_path: Path) -> None:
    # a commit between two reads: value, header and cells are all of one of them
    view = view_of(Sum("x", windows=["1h"]))
    lake, store = TileLake(tmp_path, view), MemoryStore()
    lake.commit([click(7, NOW, 1.0)])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    document = explain(fetcher, "v", {"user": 7}, NOW + 1)
    lake.commit([click(7, NOW, 2.0)])
    lake.materializer(store).run_once()
    later = explain(fetcher, "v", {"user": 7}, NOW + 1)
    for reported, snapshot, value in ((document, 1, 1.0), (later, 2, 3.0)):
        assert reported["record"]["applied_snapshot"] == snapshot
        assert reported["features"][0]["value"] == value
        assert sum(share["alone"] for share in reported["features"][0]["cells"]) == value


def test_of_other_features_nothing_is_reported(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]), Last("word", windows=["1h"]))
    fetcher = filled(tmp_path, view, [click(7, NOW, word="secret")])
    document = explain(fetcher, "v", {"user": 7}, NOW + 1, features=["sum_x_1h"])
    assert [f["name"] for f in document["features"]] == ["sum_x_1h"]
    assert document["cells"][0]["partials"].keys() == {"p_sum_x", "p_event_time_max", "p_rows"}
    assert "secret" not in json.dumps(document)


def test_of_several_definitions_that_of_the_store_is_explained(tmp_path: Path) -> None:
    old, new = view_of(Sum("x", windows=["1h"])), view_of(Sum("x", windows=["1h", "1d"]))
    store, lake = MemoryStore(), TileLake(tmp_path, old)
    lake.commit([click(7, NOW)])
    lake.materializer(store).run_once()
    fetcher = FeatureFetcher(PROJECT, [new.compiled, old.compiled], store)
    assert [f["name"] for f in explain(fetcher, "v", {"user": 7}, NOW + 1)["features"]] == [
        "sum_x_1h"
    ]
    with pytest.raises(StoreNotReadyError, match="another definition"):
        explain(fetcher, "v", {"user": 7}, NOW + 1, features=["sum_x_1d"])


def test_what_cannot_be_read_is_not_explained(tmp_path: Path) -> None:
    view = view_of(Sum("x", windows=["1h"]))
    fetcher = filled(tmp_path, view, [click(7, NOW)])
    with pytest.raises(UnknownNameError, match="unknown feature view 'w'; available: v"):
        explain(fetcher, "w", {"user": 7}, NOW)
    with pytest.raises(UnknownNameError, match="unknown feature 'v:y'; available: v:sum_x_1h"):
        explain(fetcher, "v", {"user": 7}, NOW, features=["y"])
    with pytest.raises(RequestError, match="missing entity key 'user'"):
        explain(fetcher, "v", {"shop": 7}, NOW)
    with pytest.raises(RequestError, match="before the newest applied event"):
        explain(fetcher, "v", {"user": 7}, NOW - 30 * DAY_MS)
    empty = FeatureFetcher(PROJECT, [view.compiled], MemoryStore())
    with pytest.raises(StoreNotReadyError, match="not in the online store yet"):
        explain(empty, "v", {"user": 7}, NOW)
    assert issubclass(StoreNotReadyError, OnlineStoreError)
