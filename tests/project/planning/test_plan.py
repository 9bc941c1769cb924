"""Plan and apply: what is made for which change of the definitions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    FeedbackSource,
)
from paimon_features.definitions.aggregates import (
    Aggregate,
    Count,
    Kurtosis,
    Last,
    Max,
    Mean,
    StdDev,
    Sum,
    TimeSinceLast,
    Variance,
)
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.registry import applied
from paimon_features.project.planning.plan import apply_plan, make_plan

SCHEMA = {"user_id": Int64, "t": Int64, "amount": Float64}


def shop(
    windows: list[str], tile: str = "5min", offset: str | None = None, **more: object
) -> Definitions:
    source = EventSource("shop", schema=SCHEMA, event_time="t")
    user = Entity("user", keys={"user_id": Int64})
    view = FeatureView(
        "spend",
        source=source,
        entity=user,
        tile=tile,
        features=[
            Count(windows=windows, offset=offset),
            Sum("amount", windows=windows, scale=2, offset=offset),
        ],
        **more,  # type: ignore[arg-type]
    )
    return Definitions.of([FeatureService("model", [view])])


def test_the_first_apply_creates_every_table_and_an_active_generation(lake: Lake) -> None:
    plan = apply_plan(lake, shop(["1h"]), now_ms=1)
    assert [(c.kind, c.name, c.action) for c in plan.changes] == [
        ("entity", "user", "create"),
        ("source", "shop", "create"),
        ("feature_view", "spend", "create"),
        ("service", "model", "create"),
    ]
    tables = ["events_shop", "registry", "rejected_shop", "skipped_spend_g1", "tiles_spend_g1"]
    assert lake.list() == tables
    record = generations.active(lake, "spend")
    assert record is not None
    assert (record.generation, record.table) == (1, "tiles_spend_g1")


def test_a_plan_changes_nothing(lake: Lake) -> None:
    make_plan(lake, shop(["1h"]))
    assert lake.list() == []


def test_applying_twice_does_nothing_the_second_time(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    assert apply_plan(lake, shop(["1h"]), now_ms=2).is_empty
    assert {version.number for version in applied(lake).values()} == {1}


def test_another_window_needs_no_new_generation(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    plan = apply_plan(lake, shop(["1h", "30d"]), now_ms=2)
    change = next(c for c in plan.changes if c.kind == "feature_view")
    assert (change.action, change.generation) == ("change", None)
    assert "its tiles hold what this needs: no backfill" in change.details
    text = str(change)
    assert "servers that run answer by the applied definition until" in text
    assert "materializers that run keep to the applied definition: start them again" in text
    assert applied(lake)["feature_view", "spend"].number == 2


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"kind": "hop"}, "window_kind: 'sawtooth' -> 'hop'"),
        ({"kind": "exact"}, "window_kind: 'sawtooth' -> 'exact'"),
        ({"resolution": {"1h": "10min"}}, "features.count_1h.hop: '5min' -> '10min'"),
        ({"time_zone": "Europe/London"}, "time_zone: None -> 'Europe/London'"),
    ],
)
def test_another_kind_of_windows_is_shown_and_needs_no_new_generation(
    lake: Lake, more: dict[str, object], shown: str
) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    change = next(c for c in make_plan(lake, shop(["1h"], **more)).changes if c.name == "spend")
    assert (change.action, change.generation) == ("change", None)
    assert shown in change.details
    assert "its tiles hold what this needs: no backfill" in change.details


def test_offsets_and_calendar_windows_are_shown_and_need_no_new_generation(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"], time_zone="UTC"), now_ms=1)
    plan = make_plan(lake, shop(["1h", "today"], offset="1h", time_zone="Asia/Tokyo"))
    change = next(c for c in plan.changes if c.name == "spend")
    assert (change.action, change.generation) == ("change", None)
    for shown in ("+ features.count_today_offset_1h", "- features.count_1h"):
        assert shown in change.details
    assert "time_zone: 'UTC' -> 'Asia/Tokyo'" in change.details


@pytest.mark.parametrize(
    "other", [{"tile": "1h"}, {"where": "amount > 0"}, {"buckets": 4}], ids=lambda o: next(iter(o))
)
def test_other_tiles_make_a_new_generation_beside_the_old_one(
    lake: Lake, other: dict[str, object]
) -> None:
    apply_plan(lake, shop(["1d"]), now_ms=1)
    plan = apply_plan(lake, shop(["1d"], **other), now_ms=2)  # type: ignore[arg-type]
    change = next(c for c in plan.changes if c.kind == "feature_view")
    assert (change.action, change.generation) == ("generation", 2)
    assert [(r.generation, r.state) for r in generations.load(lake, "spend")] == [
        (1, "active"),
        (2, "building"),
    ]
    generations.activate(lake, "spend", 2)
    assert apply_plan(lake, shop(["1d"], **other), now_ms=3).is_empty  # type: ignore[arg-type]


def test_a_plan_says_how_many_events_a_backfill_reads_and_about_how_long(lake: Lake) -> None:
    apply_plan(lake, shop(["1d"]), now_ms=1)
    events = {"user_id": [1, 2], "t": [5, 7], "amount": [1.0, 2.0], "event_day": [0, 0]}
    append_arrow(lake, "events_shop", pa.table(events))
    changed = shop(["1d"], tile="1h")
    text = str(make_plan(lake, changed))
    assert "needs a backfill: 'paimon-features backfill spend' reads 2 events, about 15 s" in text
    assert "(200,000 events/s, a guess: none was measured yet)" in text
    job = {"since_ms": 5, "events_read": 1_000_000, "seconds": 0.05}
    generations.update(lake, "spend", 1, job=job)
    assert "(20,000,000 events/s, as the last backfill)" in str(make_plan(lake, changed))
    few = {"since_ms": 9, "events_read": 100, "seconds": 10.0}
    generations.update(lake, "spend", 1, job=few)
    assert "a guess" in str(make_plan(lake, changed)), "a start of ten seconds is no rate"


def test_an_owner_is_a_new_version_and_needs_nothing_else(lake: Lake) -> None:
    apply_plan(lake, shop(["1d"]), now_ms=1)
    plan = apply_plan(lake, shop(["1d"], owner="growth", tags={"a": "b"}), now_ms=2)
    change = next(c for c in plan.changes if c.kind == "feature_view")
    assert (change.action, change.generation) == ("change", None)
    assert applied(lake)["feature_view", "spend"].number == 2


def test_metadata_that_are_no_texts_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"entity 'user': tags=\{'a': 1\}"):
        Entity("user", keys={"user_id": Int64}, tags={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(DefinitionError, match="service 'model': owner=7; expected a text"):
        FeatureService("model", ["a:b"], owner=7)  # type: ignore[arg-type]


def test_other_columns_of_a_source_with_history_are_refused(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    more = EventSource("shop", schema={**SCHEMA, "country": Int64}, event_time="t")
    with pytest.raises(DefinitionError, match=r"source 'shop': its schema differs.*\+ schema"):
        make_plan(lake, Definitions.of([more]))


def test_what_is_no_longer_defined_is_shown_and_keeps_its_tables(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    loop = FeedbackSource("loop", {"sample_id": Int64})
    plan = apply_plan(lake, Definitions.of([loop]), now_ms=2)
    gone = {(c.kind, c.name) for c in plan.changes if c.action == "gone"}
    assert ("feature_view", "spend") in gone
    assert lake.exists("tiles_spend_g1")
    assert lake.exists("feedback_loop")


def test_of_a_list_of_names_only_those_that_come_and_go_are_shown(lake: Lake) -> None:
    apply_plan(lake, shop(["1h"]), now_ms=1)
    text = str(make_plan(lake, shop(["1d"])))
    assert text.endswith(
        "~ service model\n"
        "    - features: spend:count_1h\n"
        "    - features: spend:sum_amount_1h\n"
        "    + features: spend:count_1d\n"
        "    + features: spend:sum_amount_1d"
    )


def test_the_plan_says_which_events_are_kept_out(lake: Lake) -> None:
    text = str(make_plan(lake, shop(["1h"])))
    assert "+ feature view spend" in text
    assert "creates tiles_spend_g1" in text
    assert "p_" not in text, "partials are internal"
    assert "count_1h Int64, sum_amount_1h Float64" in text
    assert "keeps out and counts events with |amount| > 92233720.36" in text
    assert (
        "has room for 1,000,000,000 events of an entity in a window, each at its bound "
        "(the sum sum_amount_1h wraps beyond 64 bits)"
    ) in text


def test_the_plan_proposes_a_center_where_a_variance_of_floats_would_lose_digits(
    lake: Lake,
) -> None:
    source = EventSource("shop", schema=SCHEMA, event_time="t")

    def views(center: float) -> Definitions:
        user = Entity("user", keys={"user_id": Int64})
        features = [
            StdDev("amount", windows=["1h", "1d"], center=center),
            Kurtosis("near", where="amount > 0", windows=["1h"]),
            Variance("amount", windows=["1h"], scale=2),
        ]
        derive = {"near": "amount - 101325"}
        view = FeatureView("air", source, user, features, derive=derive, where="user_id = 1")
        return Definitions.of([view])

    assert "center" not in str(apply_plan(lake, Definitions.of([source]), now_ms=0))
    assert "center=" not in str(make_plan(lake, views(0)))
    rows = {
        "user_id": [1, 1, 1, 1, 1, 2],
        "t": [0] * 6,
        "amount": [101325.0, 101335.0, 101315.0, None, np.nan, -1e9],
        "event_day": pa.array([0] * 6, pa.int32()),
        "ingest_time_ms": [0] * 6,
    }
    append_arrow(lake, "events_shop", pa.table(rows).select(lake.schema("events_shop").names))
    assert (
        "stddev_amount: by the values of 3 events its center= is far from their mean, "
        "which costs 8 of 16 digits; center=101325.0 is near"
    ) in str(make_plan(lake, views(0)))
    assert "center=" not in str(make_plan(lake, views(101_300)))


PAYMENTS = EventSource(
    "payments",
    schema={"user_id": Int64, "t": Int64, "paid_at": Int64, "wait_ms": Int64, "amount": Float64},
    event_time="t",
)


def payments(*features: Aggregate, where: str | None = None) -> Definitions:
    user = Entity("user", keys={"user_id": Int64})
    return Definitions.of([FeatureView("paid", PAYMENTS, user, features, where=where)])


def test_the_plan_warns_of_columns_whose_names_are_those_of_times(lake: Lake) -> None:
    text = str(make_plan(lake, payments(Sum("paid_at"), Mean("t"), Sum("wait_ms"))))
    assert (
        "sum_paid_at: events with |paid_at| > 9223372036 are in none of the view's features, and "
        "'paid_at' is, by its name, a time; times in milliseconds are larger"
    ) in text
    assert "mean_t: events with |t| > 9223372036" in text
    assert "sum_wait_ms: events" not in text
    for fitting in (
        Max("paid_at"), Last("paid_at"), TimeSinceLast("paid_at"), Count("paid_at"),
        Sum("paid_at", bound=10**13), Sum("paid_at", where="paid_at < 100000"),
    ):  # fmt: skip
        assert "by its name" not in str(make_plan(lake, payments(fitting))), fitting


def test_the_plan_names_the_events_that_would_be_in_no_feature(lake: Lake) -> None:
    apply_plan(lake, Definitions.of([PAYMENTS]), now_ms=0)
    rows = {
        "user_id": [1, 1, None, 2, 3],
        "t": [0] * 5,
        "paid_at": [1, 2, 3, 1_700_000_000_000, 5],
        "wait_ms": [0] * 5,
        "amount": [1.0, np.nan, 2.0, None, 1e300],
        "event_day": pa.array([0] * 5, pa.int32()),
        "ingest_time_ms": [0] * 5,
    }
    table = pa.table(rows).select(lake.schema("events_payments").names)
    append_arrow(lake, "events_payments", table)
    append_arrow(lake, "events_payments", table)
    text = str(make_plan(lake, payments(Sum("paid_at"), Sum("amount"))))
    for line in (
        "of 10 events, none of its features has 2 with user_id is null (for example user_id=None",
        "of 10 events, none of its features has 4 with |amount| > 1e+290 (for example amount=",
        "of 10 events, none of its features has 2 with |paid_at| > 9223372036 (for example "
        "paid_at=1700000000000, user_id=2, t=0): if they are right, give sum_paid_at",
    ):
        assert line in text
    valid = payments(Sum("paid_at"), Sum("amount"), where="amount < 10 AND user_id = 1")
    assert "none of its features" not in str(make_plan(lake, valid))
