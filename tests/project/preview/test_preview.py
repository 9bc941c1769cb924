"""A preview says what the other paths compute, and which event lies on which side of an edge."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.lake import append_arrow
from paimon_features.project.preview import preview_events
from paimon_features.project.preview.preview import as_of_time
from paimon_features.testing.reference.features import answer

NOON = 15_000 * DAY_MS + 12 * HOUR_MS
SHOP = pf.EventSource(
    "shop",
    schema={"user": pf.Int64, "city": pf.String, "t": pf.Int64, "amount": pf.Float64},
    event_time="t",
)
USER = pf.Entity("user", keys={"user": pf.Int64})


def view(kind: Any = "sawtooth", **options: Any) -> pf.FeatureView:
    features = [pf.Count(windows=["1h", "1d"]), pf.Sum("amount", windows=["1d"], scale=2)]
    return pf.FeatureView(
        "spend", source=SHOP, entity=USER, features=features, kind=kind, **options
    )


def events(*rows: tuple[int, int, float | None]) -> pa.Table:
    users, times, amounts = zip(*rows, strict=True)
    return pa.table(
        {
            "user": users,
            "t": pa.array(times, pa.int64()),
            "amount": pa.array(amounts, pa.float64()),
            "city": ["x"] * len(users),
        }
    )


def test_edges_are_where_the_events_beside_them_say() -> None:
    # the read is at 12:07; the hour begins at 11:05, because starts are rounded down to tiles
    as_of = NOON + 7 * MINUTE_MS
    start = NOON - 55 * MINUTE_MS
    rows = events((1, start - 1, 1.0), (1, start, 2.0), (1, as_of - 1, 3.0), (1, as_of, 4.0))
    found = preview_events(view(), rows, 1, as_of)
    hour = next(w for w in found.windows if w.window.name == "1h")
    assert (hour.start_ms, hour.end_ms, hour.events) == (start, as_of, 2)
    assert (hour.before_ms, hour.first_ms) == (start - 1, start)
    assert (hour.last_ms, hour.after_ms) == (as_of - 1, as_of)
    assert found.values == {"count_1h": 2, "count_1d": 3, "sum_amount_1d": 6.0}
    assert [e.left_out for e in found.events] == [None, None, None, "at or after the read"]


def test_what_leaves_events_out_is_said() -> None:
    rows = events((1, NOON, 5.0), (1, NOON + 1, -5.0), (1, NOON + 2, 1e300))
    found = preview_events(view(where="amount > 0"), rows, 1, NOON + MINUTE_MS)
    reasons = [e.left_out for e in found.events]
    assert reasons[:2] == [None, "left out by where"]
    assert reasons[2] is not None
    assert reasons[2].startswith("skipped: out_of_bounds")
    assert found.values["count_1d"] == 1
    assert "left out by where" in found._repr_html_()


def test_an_unknown_and_an_expired_entity_have_nulls() -> None:
    rows = events((1, NOON, 5.0), (2, NOON - 20 * HOUR_MS, 1.0))
    unknown = preview_events(view(), rows, 3, NOON + 1)
    assert unknown.status is Status.MISSING
    assert set(unknown.values.values()) == {None}
    expired = preview_events(view(ttl="2h"), rows, 2, NOON + 1)
    assert expired.status is Status.EXPIRED
    assert set(expired.values.values()) == {None}


@pytest.mark.parametrize("kind", ["sawtooth", "hop", "exact"])
def test_values_are_those_of_the_oracle_over_events(kind: Any) -> None:
    dice = random.Random(7)
    defined = view(kind)
    rows = [
        {"user": dice.randrange(4), "t": NOON - dice.randrange(2 * DAY_MS), "city": "x",
         "amount": dice.randrange(-999, 999) / 4}
        for _ in range(300)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows)
    for user in range(5):
        as_of = NOON - dice.randrange(HOUR_MS)
        found = preview_events(defined, table, user, as_of)
        own = [row for row in rows if row["user"] == user]
        expected = answer(defined, own, as_of)
        assert (found.status.name, found.values) == (expected.status, dict(expected.values)), user


def test_the_busiest_entity_is_chosen_and_others_are_sampled() -> None:
    rows = events(*((u, NOON + i, 1.0) for u in range(9) for i in range(u + 1)))
    found = preview_events(view(), rows)
    assert found.entity == {"user": 8}
    assert found.as_of_ms == NOON + 9
    assert found.samples["user"] == [8, 7, 6, 5, 4, 3]
    assert found.samples["count_1h"] == [9, 8, 7, 6, 5, 4]


def test_pictures_are_bounded_by_their_pixels_and_hold_no_markup_of_data() -> None:
    source = pf.EventSource("s", schema={"who": pf.String, "t": pf.Int64}, event_time="t")
    who = pf.Entity("who", keys={"who": pf.String})
    named = pf.FeatureView(
        "seen", source=source, entity=who,
        features=[pf.Last("who", windows=[None]), pf.Count(windows=["1h", "30d"])],
    )  # fmt: skip
    hostile = "</title><script>alert(1)</script>"
    times = [NOON - 37 * i for i in range(20_000)]
    table = pa.table({"who": [hostile] * len(times), "t": times})
    found = preview_events(named, table, hostile)
    for picture in (found.timeline(), found.timeline("10min")):
        root = ElementTree.fromstring(picture.svg)
        assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {
            "svg", "title", "rect", "line", "text", "circle"
        }  # fmt: skip
        assert len(picture.svg) < 500_000
    assert "<script" not in found._repr_html_()


def test_a_view_without_keys_is_previewed_over_all_events() -> None:
    everything = pf.FeatureView(
        "all_spend", source=SHOP, entity=pf.everything, buckets=1,
        features=[pf.Count(windows=["1d"])],
    )  # fmt: skip
    found = preview_events(everything, events((1, NOON, 1.0), (2, NOON, 1.0)))
    assert found.entity == {}
    assert found.values == {"count_1d": 2}


@pytest.mark.parametrize(
    ("entity", "as_of", "message"),
    [
        ({"usr": 1}, NOON, "expected the keys of 'user'"),
        ("one", NOON, "expected a value of type int64"),
        ({"user": None}, NOON, "is null"),
        (1, "noon", "expected UTC milliseconds"),
        (1, True, "expected UTC milliseconds"),
        (None, 0, "no entity of view 'spend' has an event before"),
    ],
)
def test_what_does_not_fit_is_said(entity: Any, as_of: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        preview_events(view(), events((1, NOON, 1.0)), entity, as_of)


def test_columns_that_are_missing_or_of_another_type_are_named() -> None:
    with pytest.raises(RequestError, match="missing column 'amount'"):
        preview_events(view(), events((1, NOON, 1.0)).drop_columns(["amount"]))
    wrong = events((1, NOON, 1.0)).set_column(0, "user", pa.array(["a"]))
    with pytest.raises(RequestError, match="the column 'user' is string"):
        preview_events(view(), wrong)
    with pytest.raises(RequestError, match="has no events to preview"):
        preview_events(view(), events((1, NOON, 1.0)).slice(0, 0))


def test_times_have_zones() -> None:
    assert as_of_time("2011-02-01 12:00") == as_of_time("2011-02-01T13:00+01:00")


def test_a_project_previews_its_lake(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(
        "import paimon_features as pf\n"
        "shop = pf.EventSource('shop', event_time='t', schema={'user': pf.Int64, "
        "'city': pf.String, 't': pf.Int64, 'amount': pf.Float64})\n"
        "user = pf.Entity('user', keys={'user': pf.Int64})\n"
        "spend = pf.FeatureView('spend', source=shop, entity=user,\n"
        "    features=[pf.Count(windows=['1h'])])\n"
    )
    project = pf.Project.open(tmp_path)
    with pytest.raises(UnknownNameError, match="paimon-features apply"):
        project.preview("spend")
    assert project.preview("spend", events=events((1, NOON, 1.0))).values == {"count_1h": 1}
    project.apply()
    with pytest.raises(RequestError, match="has no events to preview"):
        project.preview("spend")
    rows = events((1, NOON, 1.0), (1, NOON - 30 * DAY_MS, 1.0), (2, NOON + DAY_MS, 1.0))
    days = pa.array([int(t // DAY_MS) for t in rows["t"].to_pylist()], pa.int32())
    append_arrow(project.lake, "events_shop", rows.append_column("event_day", days))
    assert project.preview("spend").entity == {"user": 2}
    found = project.preview("spend", 1, NOON + 1)
    assert found.values == {"count_1h": 1}
    assert len(found.events) == 1
    assert "Plan" in project.plan()._repr_html_()
    assert "<svg" in project._repr_html_()
