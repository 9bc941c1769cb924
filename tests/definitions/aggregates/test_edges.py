"""What each aggregate returns in edge cases: expected values written by hand, without an oracle.

::

    t   0h        1h        2h    q = 3h
        too early [the window of two hours )
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import SkippedEventsWarning
from paimon_features.core.types.schema import Int64, String, arrow_schema
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import Aggregate, Reading
from paimon_features.offline.joins.point_in_time import PointInTimeJoin
from paimon_features.offline.local.features import features as local_features
from paimon_features.testing.generators import VALUE_COLUMNS
from paimon_features.testing.reference.tiler import event_rows, tile_table

Q_MS = 3 * HOUR_MS
SCHEMA = {"user": Int64, "t": Int64, **VALUE_COLUMNS}
SOURCE = EventSource("edges", schema=SCHEMA, event_time="t")
WINDOW: dict[str, Any] = {"windows": ["2h"]}
EDGES = (0.0, 1.0, 10.0)


def event(t: int = 2 * HOUR_MS, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMA), "user": 1, "t": t, **values}


def value(aggregate: Aggregate, *events: dict[str, Any]) -> Any:
    """The feature at ``Q_MS``, the same from tiles and from raw events by DuckDB."""
    view = FeatureView(
        "edges",
        source=SOURCE,
        entity=Entity("user", keys={"user": Int64}),
        features=[aggregate],
        ttl="30d",
    )
    (feature,) = view.compiled.features
    table = pa.Table.from_pylist(list(events), schema=arrow_schema(SCHEMA))
    rows = pa.table({"user": [1], "event_time_ms": [Q_MS]})
    join = PointInTimeJoin(view.compiled, [feature], rows.select(["user"]), np.array([Q_MS]))
    join.add_events(table.select(join.event_columns))
    join.join_tiles([tile_table(view, event_rows(table)).select(join.tile_columns)])
    column = join.results().columns[feature.name].to_arrow(feature.type.arrow)
    (from_tiles,) = event_rows(pa.table({"it": column}))
    found = local_features(view, table, rows).select([feature.name])
    (from_events,) = event_rows(found)
    assert repr(from_tiles["it"]) == repr(from_events[feature.name])
    return from_tiles["it"]


EMPTY: Sequence[tuple[Aggregate, Any]] = [
    (agg.Count("word", **WINDOW), 0),
    (agg.Sum("n", **WINDOW), 0),
    (agg.Sum("x", **WINDOW), 0.0),
    (agg.Sum("x", scale=2, **WINDOW), 0.0),
    (agg.Sum("price", as_decimal=True, **WINDOW), PyDecimal("0.00")),
    (agg.Mean("n", **WINDOW), None),
    (agg.Min("n", **WINDOW), None),
    (agg.Max("x", **WINDOW), None),
    (agg.Variance("n", **WINDOW), None),
    (agg.StdDev("x", **WINDOW), None),
    (agg.Skewness("n", **WINDOW), None),
    (agg.Kurtosis("x", **WINDOW), None),
    (agg.First("word", **WINDOW), None),
    (agg.Last("word", tie="n", **WINDOW), None),
    (agg.Last("vec", **WINDOW), None),
    (agg.First("pair", tie="word", **WINDOW), None),
    (agg.FirstN("n", n=2, **WINDOW), None),
    (agg.LastN("n", n=2, **WINDOW), None),
    (agg.TopK("n", n=2, **WINDOW), None),
    (agg.BottomK("word", by="n", n=2, **WINDOW), None),
    (agg.DecayedSum("x", half_life="1h", **WINDOW), 0.0),
    (agg.DecayedCount("x", half_life="1h", **WINDOW), 0.0),
    (agg.DecayedMean("x", half_life="1h", **WINDOW), None),
    (agg.CountBy("word", values=["a"], **WINDOW), [("a", 0), ("other", 0)]),
    (agg.SumBy("n", by="word", values=["a"], other=None, **WINDOW), [("a", 0)]),
    (agg.TopCategories("word", n=2, **WINDOW), None),
    (agg.Any("flag", **WINDOW), None),
    (agg.All("flag", **WINDOW), None),
    (agg.Rate("n", per="1h", **WINDOW), 0.0),
    (agg.TimeSinceLast("n", **WINDOW), None),
    (agg.TimeSinceFirst("n", **WINDOW), None),
    (agg.ApproxCountDistinct("word", **WINDOW), 0),
    (agg.Histogram("x", edges=EDGES, **WINDOW), [0, 0, 0, 0]),
    (agg.Quantile("x", q=0.5, edges=EDGES, **WINDOW), None),
    (agg.VectorSum("pair", **WINDOW), [0, 0]),
    (agg.VectorMean("vec", **WINDOW), None),
]
FULL = {"n": 7, "x": 0.5, "price": PyDecimal("1.25"), "word": "a", "flag": True}
FULL |= {"pair": [1, 2], "vec": [1.0, 2.0, 3.0]}
EARLY = event(0, **FULL)


@pytest.mark.parametrize(("aggregate", "nothing"), EMPTY, ids=lambda one: getattr(one, "kind", ""))
def test_an_empty_window_of_a_known_entity(aggregate: Aggregate, nothing: Any) -> None:
    assert repr(value(aggregate, EARLY)) == repr(nothing)


@pytest.mark.parametrize(("aggregate", "nothing"), EMPTY, ids=lambda one: getattr(one, "kind", ""))
def test_only_nulls_are_like_no_events(aggregate: Aggregate, nothing: Any) -> None:
    assert repr(value(aggregate, EARLY, event(), event())) == repr(nothing)


def test_every_aggregate_has_a_value_for_an_empty_window() -> None:
    named = {getattr(agg, name) for name in agg.__all__}
    kinds = {kind for kind in named if isinstance(kind, type) and issubclass(kind, Aggregate)}
    assert kinds - {type(aggregate) for aggregate, _ in EMPTY} == {Aggregate}


def test_aggregates_without_a_column_take_events_whatever_is_null() -> None:
    assert value(agg.Count(**WINDOW), event(), event(Q_MS - 1)) == 2
    assert value(agg.Rate(per="1h", **WINDOW), event(), event()) == 1.0
    assert value(agg.TimeSinceLast(**WINDOW), event(Q_MS - 5)) == 5
    assert value(agg.DecayedCount(half_life="1h", **WINDOW), event(), event()) == 1.0


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([0.125], 0.12),  # 12.5 is rounded to the even 12
        ([0.375], 0.38),
        ([-0.125], -0.12),
        ([2.675], 2.68),  # the double is less, but its product with 100 is 267.5
        ([1.005], 1.0),  # 100.49999999999999
        ([0.1] * 10, 1.0),
        ([0.004] * 10, 0.0),  # each value is rounded, not their sum
    ],
)
def test_a_scaled_sum_rounds_each_value_half_to_even(numbers: list[float], total: float) -> None:
    assert value(agg.Sum("x", scale=2, **WINDOW), *(event(x=x) for x in numbers)) == total


def test_a_scaled_sum_of_decimals_rounds_the_decimal_itself() -> None:
    prices = [event(price=PyDecimal(text)) for text in ("0.25", "0.35", "-0.45")]
    assert value(agg.Sum("price", scale=1, as_decimal=True, **WINDOW), *prices) == PyDecimal("0.2")
    assert value(agg.Sum("price", as_decimal=True, **WINDOW), *prices) == PyDecimal("0.15")


def test_a_finished_number_is_the_float_nearest_to_the_exact_one() -> None:
    assert value(agg.Sum("price", **WINDOW), *[event(price=PyDecimal("0.10"))] * 3) == 0.3
    large = [event(n=2**60), event(n=2**60 - 1), event(n=2**60 - 1)]
    mean = value(agg.Mean("n", bound=2**61, **WINDOW), *large)
    assert mean == (3 * 2**60 - 2) / 3
    assert value(agg.Mean("x", scale=2, **WINDOW), *[event(x=0.1)] * 3) == 0.1
    assert value(agg.Sum("n", bound=2**61, **WINDOW), *large) == 3 * 2**60 - 2


def test_a_zero_has_no_sign() -> None:
    for one in (agg.Min, agg.Max, agg.First, agg.Last, agg.Sum, agg.Mean):
        assert repr(value(one("x", **WINDOW), event(x=-0.0))) == "0.0"
    assert repr(value(agg.TopK("x", n=2, **WINDOW), event(x=-0.0), event(x=0.0))) == "[0.0, 0.0]"
    merged, reading = [Column(np.array([-0.0])), Column(np.array([1]))], Reading(0, np.array([0]))
    for total in (agg.Sum("x"), agg.Mean("x"), agg.Max("x")):
        partials = total.partials(SCHEMA)
        found = total.finish(SCHEMA, merged[: len(partials)], reading)
        assert repr(found.column.values.tolist()) == "[0.0]"
    distinct = agg.ApproxCountDistinct("x", **WINDOW)
    assert value(distinct, event(x=-0.0), event(x=0.0)) == 1
    assert value(agg.Histogram("x", edges=[0.0], **WINDOW), event(x=-0.0)) == [0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_event_with_nan_or_an_infinity_enters_no_tile_of_a_view_that_reads_it(
    bad: float,
) -> None:
    for aggregate in (agg.Sum("x", **WINDOW), agg.Sum("x", scale=2, **WINDOW)):
        with pytest.warns(SkippedEventsWarning, match="1 of 2 events are in none of its features"):
            assert value(aggregate, event(x=bad), event(x=1.5)) == 1.5
    with pytest.warns(SkippedEventsWarning, match="1 with x is not finite .for example x=.*null"):
        assert value(agg.Last("x", **WINDOW), event(Q_MS - 1, x=bad), event(x=1.5)) == 1.5
    # all of the event stays out, not its column alone
    assert value(agg.Count("word", where="x > 0", **WINDOW), event(x=1.0, word="a")) == 1
    with pytest.warns(SkippedEventsWarning):
        assert value(agg.TopK("word", by="x", **WINDOW), event(x=bad, word="a"), EARLY) is None


def test_a_value_beyond_its_bound_stays_out_and_one_on_it_enters() -> None:
    bounded = agg.Sum("n", bound=10, **WINDOW)
    events = [event(n=n) for n in (10, -10, 1, 11, -11)]
    with pytest.warns(SkippedEventsWarning, match=r"2 with \|n\| > 10 \(for example n=11"):
        assert value(bounded, *events) == 1


@pytest.mark.parametrize("bound", [2**47, 2**62])
def test_a_value_whose_square_has_no_room_stays_out_of_a_variance_whatever_its_bound(
    bound: int,
) -> None:
    spread = agg.Variance("n", bound=bound, **WINDOW)
    assert value(spread, event(n=2**46), event(n=2**46 - 3)) == 2.25
    with pytest.warns(SkippedEventsWarning):
        assert value(spread, event(n=5), event(n=2**47 + 1)) == 0.0
    scaled = agg.Variance("x", scale=2, bound=1e15, **WINDOW)
    with pytest.warns(SkippedEventsWarning) as warned:
        assert value(scaled, event(x=5.0), event(x=1e13)) == 0
    assert "larger bound=" not in str(warned[0].message)  # it would not help
    squares = spread.partials(SCHEMA)[1]
    assert squares.events_that_fit == 1
    assert agg.Variance("n").partials(SCHEMA)[1].events_that_fit > 4 * 10**8


def test_of_one_time_the_greatest_value_is_last_and_the_smallest_first() -> None:
    words = [event(word=word) for word in ("b", "\U0001f600", "\uffff", "B")]
    assert value(agg.Last("word", **WINDOW), *words) == "\U0001f600"  # by code point
    assert value(agg.First("word", **WINDOW), *words) == "B"
    assert value(agg.LastN("word", n=2, **WINDOW), *words) == ["\U0001f600", "\uffff"]
    assert value(agg.FirstN("word", n=2, **WINDOW), *words) == ["B", "b"]
    assert value(agg.Last("word", **WINDOW), *words, event(2 * HOUR_MS + 1, word="A")) == "A"


def test_a_tie_breaker_decides_at_one_time_and_a_null_one_loses() -> None:
    rows = [event(word="z"), event(word="a", n=1), event(word="b", n=1), event(word="y", n=0)]
    assert value(agg.Last("word", tie="n", **WINDOW), *rows) == "b"
    assert value(agg.First("word", tie="n", **WINDOW), *rows) == "y"
    assert value(agg.LastN("word", tie="n", n=4, **WINDOW), *rows) == ["b", "a", "y", "z"]
    assert value(agg.FirstN("word", tie="n", n=4, **WINDOW), *rows) == ["y", "a", "b", "z"]


def test_lists_of_one_column_share_what_is_kept_and_have_their_own_lengths() -> None:
    view = FeatureView(
        "edges",
        source=SOURCE,
        entity=Entity("user", keys={"user": Int64}),
        features=[agg.LastN("n", n=1, **WINDOW), agg.LastN("n", n=3, **WINDOW)],
    )
    assert sum(partial.type == String for partial in view.compiled.partials) == 1
    table = pa.Table.from_pylist([event(n=n) for n in range(5)], schema=arrow_schema(SCHEMA))
    found = local_features(view, table, {"user": [1], "event_time_ms": [Q_MS]})
    assert found["last_n_n_1_2h"].to_pylist() == [[4]]
    assert found["last_n_n_3_2h"].to_pylist() == [[4, 3, 2]]


def test_first_and_last_skip_nulls() -> None:
    rows = [event(word="a"), event(Q_MS - 1)]
    assert value(agg.Last("word", **WINDOW), *rows) == "a"
    assert value(agg.LastN("word", n=3, **WINDOW), *rows) == ["a"]


def test_the_greatest_come_as_often_as_seen_and_of_equal_ones_the_greatest_value() -> None:
    numbers = [event(n=n) for n in (3, 1, 3, None, 2)]
    assert value(agg.TopK("n", n=3, **WINDOW), *numbers) == [3, 3, 2]
    assert value(agg.BottomK("n", n=2, **WINDOW), *numbers) == [1, 2]
    rows = [event(word="a", n=1), event(word="b", n=1), event(word=None, n=9), event(word="c")]
    assert value(agg.TopK("word", by="n", n=3, **WINDOW), *rows) == ["b", "a"]
    assert value(agg.BottomK("word", by="n", n=1, **WINDOW), *rows) == ["a"]


def test_of_equally_frequent_categories_the_lesser_text_comes_first() -> None:
    words = [event(word=word) for word in ("b", "a", "c", "c", None, None, None)]
    assert value(agg.TopCategories("word", n=2, **WINDOW), *words) == [("c", 2), ("a", 1)]


def test_a_null_category_counts_nowhere() -> None:
    rows = [event(word="a", n=1), event(word="x", n=2), event(n=4), event(word="a")]
    assert value(agg.CountBy("word", values=["a", "b"], **WINDOW), *rows) == [
        ("a", 2), ("b", 0), ("other", 1)
    ]  # fmt: skip
    assert value(agg.CountBy("word", values=["b", "a"], other=None, **WINDOW), *rows) == [
        ("b", 0), ("a", 2)
    ]  # fmt: skip
    assert value(agg.SumBy("n", by="word", values=["a"], **WINDOW), *rows) == [
        ("a", 1), ("other", 2)
    ]  # fmt: skip


def test_a_null_condition_decides_nothing() -> None:
    flags = [event(flag=False), event(flag=None)]
    assert value(agg.Any("flag", **WINDOW), *flags) is False
    assert value(agg.All("flag", **WINDOW), event(flag=True), event(flag=None)) is True
    assert value(agg.All("flag", **WINDOW), event(flag=True), *flags) is False
    assert value(agg.Any(condition="n > 1", name="any_large", **WINDOW), event(), EARLY) is None


def test_moments_need_values_and_a_shape_needs_two_that_differ() -> None:
    assert value(agg.Variance("n", **WINDOW), event(n=5)) == 0.0
    assert value(agg.Variance("n", ddof=1, **WINDOW), event(n=5)) is None
    assert value(agg.StdDev("n", ddof=1, **WINDOW), event(n=5), event(n=7)) == math.sqrt(2)
    for shape in (agg.Skewness, agg.Kurtosis):
        assert value(shape("n", **WINDOW), event(n=5), event(n=5)) is None
    assert value(agg.Skewness("n", **WINDOW), event(n=1), event(n=2)) == 0.0
    assert value(agg.Kurtosis("n", **WINDOW), event(n=1), event(n=2)) == -2.0


def test_a_value_at_an_edge_is_in_the_bin_above_it() -> None:
    values = [event(x=x) for x in (-0.5, 0.0, 0.5, 1.0, 1.0, 9.9, 10.0, 11.0)]
    assert value(agg.Histogram("x", edges=EDGES, **WINDOW), *values) == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("q", "numbers", "expected"),
    [
        (0.5, [0.2, 0.7], 0.5),  # the middle of their bin
        (0.0, [2.0, 3.0], 1.0),  # the bin's lower edge
        (1.0, [2.0, 3.0], 10.0),  # its upper one
        (0.5, [-5.0, -7.0], 0.0),  # below all edges: the first
        (0.5, [99.0], 10.0),  # above: the last
        (0.5, [0.5, 5.0], 1.0),  # the rank falls on the end of a bin
    ],
)
def test_a_quantile_is_interpolated_in_its_bin_and_never_leaves_the_edges(
    q: float, numbers: list[float], expected: float
) -> None:
    quantile = agg.Quantile("x", q=q, edges=EDGES, **WINDOW)
    assert value(quantile, *(event(x=x) for x in numbers)) == expected


def test_a_quantile_of_rank_n_is_not_rounded_above_its_bin() -> None:
    assert 0.7 + (2.9 - 0.7) > 2.9
    greatest = agg.Quantile("x", q=1.0, edges=[0.7, 2.9], **WINDOW)
    assert value(greatest, event(x=1.0)) == 2.9


def test_a_rate_divides_by_the_nominal_length() -> None:
    # the window begins at 1 h, where its hop does; two hours it is called, so it is divided by two
    assert value(agg.Rate("n", per="30min", **WINDOW), event(n=8), event(n=4)) == 3.0
    scaled = agg.Rate("x", scale=2, per="30min", **WINDOW)
    assert value(scaled, event(x=8.0), event(x=4.0)) == 3.0


def test_times_since_are_counted_at_the_read() -> None:
    rows = [event(HOUR_MS), event(Q_MS - 1)]
    assert value(agg.TimeSinceLast(**WINDOW), *rows) == 1
    assert value(agg.TimeSinceFirst(unit="1h", **WINDOW), *rows) == 2.0
    assert value(agg.TimeSinceLast(offset="1h", **WINDOW), *rows) == 2 * HOUR_MS


def test_what_is_ahead_of_the_read_is_0_old() -> None:
    # online the open tile holds what has arrived
    merged, reading = [Column(np.array([7, 3]))], Reading(5, np.array([0, 0]))
    done = agg.TimeSinceLast().finish(SCHEMA, merged, reading)
    assert done.column.values.tolist() == [0, 2]


def test_a_weight_halves_with_each_half_life_before_the_read() -> None:
    rows = [event(2 * HOUR_MS, x=8.0), event(HOUR_MS, x=8.0)]
    assert value(agg.DecayedSum("x", half_life="1h", **WINDOW), *rows) == pytest.approx(6, 1e-15)
    assert value(agg.DecayedCount(half_life="1h", **WINDOW), *rows) == pytest.approx(0.75, 1e-15)
    assert value(agg.DecayedMean("x", half_life="1h", **WINDOW), *rows) == 8.0


def test_distinct_values_are_counted_once_however_often_they_come() -> None:
    words = [event(word=word) for word in ("a", "b", "a", None, "a")]
    assert value(agg.ApproxCountDistinct("word", **WINDOW), *words, *words) == 2


def test_vectors_are_added_element_by_element_and_null_ones_passed_over() -> None:
    rows = [event(pair=[1, -2]), event(pair=None), event(pair=[4, 1])]
    assert value(agg.VectorSum("pair", **WINDOW), *rows) == [5, -1]
    assert value(agg.VectorMean("pair", **WINDOW), *rows) == [2.5, -0.5]


@pytest.mark.parametrize("bad", [[1.0, 2.0], [1.0, None, 2.0], [1.0, math.nan, 2.0]])
def test_a_vector_of_another_length_or_with_a_hole_enters_no_tile(bad: list[Any]) -> None:
    good = event(vec=[1.0, 2.0, 4.0])
    with pytest.warns(
        SkippedEventsWarning, match=r"vec is not a list of 3 numbers|element\(vec, 2\).*NaN"
    ):
        assert value(agg.VectorSum("vec", **WINDOW), event(vec=bad), good) == [1.0, 2.0, 4.0]
