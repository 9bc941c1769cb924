"""Events that are in none of a view's features: counted and named where values come from events."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import SkippedEventsWarning
from paimon_features.definitions.skipped import SkippedEvents, merged, skipped_events, verdicts
from paimon_features.offline.local.features import features
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import every_seed
from tests.generators import random_view
from tests.tile_jobs import expected_skips

COLUMNS = {"user": pf.Int64, "t": pf.Int64, "paid_at": pf.Int64, "x": pf.Float64, "flag": pf.Bool}
SOURCE = pf.EventSource("payments", schema=COLUMNS, event_time="t")


def view_of(*aggregates: pf.Aggregate) -> pf.FeatureView:
    return pf.FeatureView("paid", SOURCE, pf.Entity("user", keys={"user": pf.Int64}), aggregates)


def counted(skipped: Iterable[SkippedEvents]) -> Counter[tuple[str, str]]:
    return Counter({(one.rule.reason, one.rule.detail): one.events for one in merged(skipped)})


@every_seed(25)
def test_counts_and_examples_equal_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    view = random_view(rng)
    compiled, events = view.compiled, random_events(rng, view, 40)
    rows = event_rows(events)
    wanted = expected_skips(view, rows)

    columns = {name: Column.from_arrow(events.column(name)) for name in events.column_names}
    members, broken = verdicts(compiled, columns, len(rows))
    own = skipped_events(compiled, columns, members, broken)
    assert counted(own) == wanted
    assert counted(merged([*own, *own])) == wanted + wanted

    # an example is an event that breaks its rule
    for one in own:
        (row,) = event_rows(pa.Table.from_pylist([dict(one.example)], _schema(events, one.example)))
        assert expected_skips(view, [row])[one.rule.reason, one.rule.detail] == 1


def _schema(events: pa.Table, example: Iterable[str]) -> pa.Schema:
    return pa.schema([events.schema.field(name) for name in example])


def test_a_time_in_a_sum_is_reported_with_count_example_bound_and_remedy() -> None:
    view = view_of(pf.Sum("paid_at"), pf.Mean("x"), pf.Count())
    events = {
        "user": [1, 1, 1], "t": [10, 20, 30], "paid_at": [5, 1_700_000_000_000, None],
        "x": [1.0, 2.0, 3.0], "flag": [True] * 3,
    }  # fmt: skip
    rows = {"user": [1], "event_time_ms": [100]}
    with pytest.warns(SkippedEventsWarning) as warned:
        (row,) = features(view, events, rows).to_pylist()
    assert row["count"] == 2
    assert str(warned[0].message) == (
        "feature view 'paid': 1 of 3 events are in none of its features:\n"
        "  1 with |paid_at| > 9223372036 (for example paid_at=1700000000000, user=1, t=20): "
        "if they are right, give sum_paid_at a larger bound=; "
        "where= of sum_paid_at excludes such values there and keeps the event in the other features"
    )
    assert warned[0].filename == __file__
    # what the message proposes
    for better in (pf.Sum("paid_at", bound=10**13), pf.Sum("paid_at", where="paid_at < 1000000")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (row,) = features(view_of(better, pf.Mean("x"), pf.Count()), events, rows).to_pylist()
        assert row["count"] == 3
        assert row["mean_x"] == 2.0


def test_where_the_bound_cannot_grow_the_message_does_not_propose_it() -> None:
    for aggregate, value in (
        (pf.Skewness("x", scale=2), 1e15),
        (pf.Variance("n", bound=2**62), 2**62),
    ):
        with pytest.warns(SkippedEventsWarning) as warned:
            pf.evaluate(aggregate, [{aggregate.column or "": value}])
        assert "larger bound=" not in str(warned[0].message)
        assert f"where= of {aggregate.stem}" in str(warned[0].message)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), [1.0, float("nan")]])
def test_nan_is_named_as_such_and_no_bound_is_proposed(bad: float | list[float]) -> None:
    aggregate = pf.VectorSum("x") if isinstance(bad, list) else pf.Sum("x")
    with pytest.warns(
        SkippedEventsWarning, match="NaN and infinities are no valid input"
    ) as warned:
        pf.evaluate(aggregate, [{"x": bad}])
    assert "larger bound=" not in str(warned[0].message)


def test_valid_events_and_events_outside_of_where_are_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pf.evaluate(pf.Sum("n", where="n < 10"), [{"n": 1}, {"n": 2**60}]) == 1
        assert pf.evaluate(pf.Max("n"), [{"n": 1}, {"n": 2**60}]) == 2**60
    assert np.isfinite(pf.evaluate(pf.Max("x"), [{"x": 1.5e300}]))
