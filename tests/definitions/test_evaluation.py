"""``evaluate`` against the reference implementations, and in every aggregate's docstring."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import SkippedEventsWarning
from paimon_features.definitions import aggregates
from paimon_features.testing.generators import EVENT_TIME, random_events, random_time_ms
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import seeds
from tests.generators import random_view

PUBLIC = [
    value
    for name in aggregates.__all__
    if isinstance(value := getattr(aggregates, name), type)
    and issubclass(value, aggregates.Aggregate)
    and value is not aggregates.Aggregate
]


@pytest.mark.filterwarnings("ignore::paimon_features.core.errors.SkippedEventsWarning")
def test_generated_events_have_the_values_of_the_reference_implementation() -> None:
    compared = 0
    for seed in seeds(150):
        rng = random.Random(seed)
        view = random_view(rng)
        table = random_events(rng, view, rng.choice((1, 3, 30)))
        rows = event_rows(table)
        entity = {key: rows[0][key] for key in view.entity.keys}
        own = [i for i, row in enumerate(rows) if entity.items() <= row.items()]
        events = [rows[i] for i in own]
        as_of_ms = random_time_ms(rng, max(event[EVENT_TIME] for event in events))
        expected = answer(view, events, as_of_ms)
        if expected.status != "PRESENT":
            continue
        compared += 1
        values = pf.evaluate(view, table.take(own).to_pylist(), as_of_ms=as_of_ms)
        features = view.compiled.features
        found = {f.name: pa.array([values[f.name]], f.type.arrow) for f in features}
        (row,) = event_rows(pa.table(found))
        wrong = differences(view, events, as_of_ms, expected, row)
        assert not wrong, (seed, as_of_ms, wrong)
    assert compared > 10


def test_every_public_aggregate_shows_its_value_in_its_docstring() -> None:
    assert len(PUBLIC) == 31
    missing = [kind.__name__ for kind in PUBLIC if "pf.evaluate(" not in (kind.__doc__ or "")]
    assert not missing


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None], 1), ([1, 2.5], 2.5), ([True, None], True), (["a"], "a"),
        ([dt.date(2024, 2, 29)], dt.date(2024, 2, 29)),
        ([dt.datetime(2024, 2, 29, 1)], dt.datetime(2024, 2, 29, 1)),
        ([decimal.Decimal("1.50"), decimal.Decimal(2)], decimal.Decimal("2.00")),
        ([[1, 2], None, [3, 4]], [3, 4]),
    ],
)  # fmt: skip
def test_types_follow_from_the_values(values: list[Any], expected: Any) -> None:
    assert pf.evaluate(pf.Last("x"), [{"x": value} for value in values]) == expected


def test_a_type_that_does_not_follow_from_the_values_is_an_error_unless_it_is_declared() -> None:
    for values in ([None], [1, "a"], [object()]):
        with pytest.raises(pf.errors.DefinitionError, match="cannot be inferred.*schema="):
            pf.evaluate(pf.Last("x"), [{"x": value} for value in values])
    assert pf.evaluate(pf.Sum("x"), [{"x": None}], schema={"x": pf.Float64}) == 0.0


def test_windows_are_half_open_and_events_may_come_in_any_order() -> None:
    #  0      5min     10min      15min
    #  a        b         c         |as_of, excluded
    events = [{"at_ms": minutes * 60_000, "x": 2**i} for i, minutes in enumerate((10, 0, 5, 15))]
    sums = pf.Sum("x", windows=["5min", "10min", None])
    assert pf.evaluate(sums, events, as_of_ms=900_000) == {
        "sum_x_5min": 1, "sum_x_10min": 5, "sum_x": 7,
    }  # fmt: skip


def test_events_that_a_rule_skips_do_not_count() -> None:
    events = [{"x": 1.0}, {"x": float("nan")}, {"x": 1e300}]
    with pytest.warns(SkippedEventsWarning, match=r"'evaluated': 2 of 3 events .*\n  2 with \|x\|"):
        assert pf.evaluate(pf.Sum("x"), events) == 1.0
