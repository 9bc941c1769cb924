"""Sources whose events may be withdrawn: what a view of them means, and what it cannot be."""

from __future__ import annotations

import random
from decimal import Decimal as PyDecimal
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Bool, Decimal, Float64, Int64, String
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import (
    Aggregate,
    Count,
    DecayedCount,
    DecayedMean,
    DecayedSum,
    Last,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
    Variance,
)
from paimon_features.testing.reference.features import answer, entered
from paimon_features.testing.reference.tiler import tile_table
from tests.tile_jobs import expected_skips

SCHEMA = {"user": Int64, "t": Int64, "n": Int64, "x": Float64, "price": Decimal(10, 2)}
USER = Entity("user", keys={"user": Int64})
SUMS: list[Aggregate] = [
    Count(),
    Sum("n"),
    Sum("x", scale=2),
    Mean("price"),
    Variance("n"),
    StdDev("x", scale=2),
    DecayedSum("x", half_life="1h"),
    DecayedCount(half_life="1h"),
]


def view(*features: Aggregate, kind: Any = String, **changes: Any) -> FeatureView:
    source = EventSource("orders", {**SCHEMA, "op": kind}, event_time="t", retraction="op")
    return FeatureView("spend", source, USER, list(features) or SUMS, **changes)


def event(op: Any, n: int | None = 3, t: int = 0) -> dict[str, Any]:
    return {"user": 1, "t": t, "n": n, "x": 0.1, "price": PyDecimal("1.25"), "op": op}


@pytest.mark.parametrize(("kind", "add", "take"), [(String, "+U", "-U"), (Bool, False, True)])
def test_an_event_and_its_retraction_leave_a_tile_of_exact_zeros(
    kind: Any, add: Any, take: Any
) -> None:
    rng = random.Random(0)
    orders = view(kind=kind)
    events = [event(add, n) for n in (1, -7, 10**9, None)]
    events += [{**row, "op": take} for row in events]
    rng.shuffle(events)
    (tile,) = tile_table(orders, events).to_pylist()
    assert {tile[name] for name in orders.compiled.partial} == {0}
    assert answer(orders, events, 1).values == {
        "count": 0, "sum_n": 0, "sum_x": 0.0, "mean_price": None, "variance_n": None,
        "stddev_x": None, "decayed_sum_x_h1h": 0.0, "decayed_count_h1h": 0.0,
    }  # fmt: skip


def test_a_retracted_event_still_counts_as_newest_event() -> None:
    orders = view(Count(windows=["1h"]))
    events = [event("+I", t=5), event("-D", t=5)]
    (tile,) = tile_table(orders, events).to_pylist()
    assert (tile["p_event_time_max"], tile["p_rows"]) == (5, 0)
    assert answer(orders, events, 10).status == "PRESENT"


def test_an_early_retraction_counts_minus_one_until_its_event_arrives() -> None:
    orders = view(Count(), Sum("n"), Mean("n"), Variance("n"))
    early = answer(orders, [event("-D")], 1).values
    assert early == {"count": -1, "sum_n": -3, "mean_n": None, "variance_n": None}
    both = answer(orders, [event("-D"), event("+I"), event("+I", 4)], 1).values
    assert both == {"count": 1, "sum_n": 4, "mean_n": 4.0, "variance_n": 0.0}


@pytest.mark.parametrize("op", [None, "I", "+i", " +I", "-"])
def test_a_row_that_is_neither_event_nor_retraction_is_skipped_and_counted(op: str | None) -> None:
    assert len(entered(view(), [event(op), event("+I")])) == 1
    assert expected_skips(view(), [event(op)]) == {("bad_retraction", "op"): 1}


@pytest.mark.parametrize(
    ("aggregate", "why"),
    [
        (Min("n"), "min_n: events of source 'orders' may be retracted .* are merged by min"),
        (Max("n"), "max cannot retract one"),
        (Last("n"), "are merged by max"),
        (DecayedMean("n", half_life="1h"), "use DecayedSum and DecayedCount"),
        (Variance("x"), "give scale="),
        (StdDev("x"), "give scale="),
    ],
)
def test_an_aggregate_that_cannot_retract_is_rejected(aggregate: Aggregate, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        view(Count(), aggregate)


@pytest.mark.parametrize(
    "changes",
    [
        {"where": "op = '+I'"},
        {"derive": {"kind": "op"}, "features": [Count("kind")]},
        {"features": [Count(where="op <> '-D'", name="kept")]},
        {"features": [Count("op")]},
    ],
)
def test_the_retraction_column_is_not_read_by_the_view_itself(changes: dict[str, Any]) -> None:
    features = changes.pop("features", [Count()])
    with pytest.raises(DefinitionError, match="a retraction would not match its event"):
        view(*features, **changes)


def test_declaring_a_retraction_is_another_generation() -> None:
    plain = EventSource("orders", {**SCHEMA, "op": String}, event_time="t")
    other = FeatureView("spend", plain, USER, SUMS)
    assert other.compiled.fingerprint != view().compiled.fingerprint
