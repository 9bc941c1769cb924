"""Unbounded lateness and retracted events, from the lake to the online store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paimon_features.core.types.schema import String
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.lake import read_arrow
from paimon_features.online.store import OnlineStore
from paimon_features.testing.reference.features import Event
from tests.clicks import CLICKS, START_MS, USER, ClickStream, wrong_answers
from tests.tile_lake import TileLake


def test_an_event_years_late_enters_its_tile_and_the_lifetime(
    lake: TileLake, stream: ClickStream, store: OnlineStore
) -> None:
    #  tiles    -20 years      -1 year         now
    #  commits  3rd            2nd             1st
    worker = lake.materializer(store)
    stream.commit()
    assert worker.run_once().caught_up
    for years in (1, 20):
        late = {"user": 3, "t": START_MS - years * 365 * DAY_MS, "n": 7, "word": None}
        stream.events.append(late)
        lake.commit([late])
        assert worker.run_once().caught_up
        tiles = read_arrow(lake.lake, lake.record.table, ["tile_day", "p_rows"]).to_pylist()
        assert {"tile_day": late["t"] // DAY_MS, "p_rows": 1} in tiles
        assert wrong_answers(lake.view, store, stream.events) == []


def test_a_retraction_removes_its_event_from_any_tile(tmp_path: Path, store: OnlineStore) -> None:
    source = replace(CLICKS, schema={**CLICKS.schema, "op": String}, retraction="op")
    view = FeatureView(
        "clicks", source, USER, [Sum("n", windows=["10min", "1d", None]), Count(windows=["12d"])]
    )
    lake = TileLake(tmp_path / "retracted", view)
    worker = lake.materializer(store)
    events: list[Event] = []
    times = (START_MS, START_MS - 5 * HOUR_MS, START_MS - 3 * DAY_MS, START_MS - 400 * DAY_MS)
    for n, t in enumerate(times):
        events += [
            {"user": user, "t": t, "n": n + user, "word": None, "op": "+I"} for user in (1, 2)
        ]
    lake.commit(events)
    assert worker.run_once().caught_up
    for event in [e for e in events if e["user"] == 1]:
        events.append({**event, "op": "-D"})
        lake.commit(events[-1:])
        assert worker.run_once().caught_up
        assert wrong_answers(view, store, events) == []
