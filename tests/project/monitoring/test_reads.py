"""Statistics of any range from tiles, against loops over the events; and the events themselves."""

from __future__ import annotations

import random
from fractions import Fraction

import pyarrow as pa
import pytest

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.project.monitoring import TimeRange
from tests.project.monitoring.shop import COUNTRIES, EDGES, START, Shop, open_shop, random_rows
from tests.reference.monitoring import reference_bins, reference_moments

EPS = 2.0**-52


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = open_shop(tmp_path_factory.mktemp("shop"))
    shop.commit(random_rows(1, 900))
    shop.commit(random_rows(2, 300))
    shop.tile()
    return shop


def ranges() -> list[TimeRange]:
    rng = random.Random(5)
    out = [TimeRange(), TimeRange(START + HOUR_MS, None), TimeRange(None, START + DAY_MS)]
    for _ in range(12):
        since = START + rng.randrange(3 * DAY_MS)
        out.append(
            TimeRange(since, since + rng.choice([1, 60_000, HOUR_MS, rng.randrange(1, 2 * DAY_MS)]))
        )
    return out


@pytest.mark.parametrize("within", ranges(), ids=str)
def test_statistics_of_any_range_are_those_of_its_events(shop: Shop, within: TimeRange) -> None:
    members = shop.members(within.low_ms, within.high_ms)
    names = ["price", "items", "amount", "noise", "country", "gift"]
    found = {s.column: s for s in shop.reader().statistics(names, within)}
    for name, column in found.items():
        values = [row[name] for row in members if row[name] is not None]
        assert (column.rows, column.count) == (len(members), len(values))
        assert column.nulls == len(members) - len(values)
    for name in ("price", "items", "amount", "noise"):
        values = [row[name] for row in members if row[name] is not None]
        column = found[name]
        assert column.has_range
        assert (column.low, column.high) == (min(values, default=None), max(values, default=None))
        if not values:
            continue
        moments = column.moments
        assert moments is not None
        scale = {"price": 2, "items": 0, "amount": 4}.get(name)
        if scale is None:
            mean, squares = reference_moments(values)
            bound = len(values) * EPS * moments.condition * float(squares) * 2
            assert float(mean) == pytest.approx(moments.mean, rel=1e-14)
            assert abs(float(squares) - moments.squares) <= bound
        else:
            exact = [Fraction(round(Fraction(v) * 10**scale), 10**scale) for v in values]
            exact_mean = sum(exact, Fraction(0)) / len(exact)
            exact_squares = sum(((v - exact_mean) ** 2 for v in exact), Fraction(0))
            assert (moments.mean, moments.condition) == (float(exact_mean), 1.0)
            assert moments.squares == float(exact_squares)
            assert abs(Fraction(moments.mean) + Fraction(moments.rest) - exact_mean) <= abs(
                exact_mean
            ) * Fraction(1, 2**100)
    prices = [row["price"] for row in members if row["price"] is not None]
    assert list(found["price"].bins or ()) == reference_bins(prices, EDGES)
    assert found["country"].categories == {
        country: sum(row["country"] == country for row in members) for country in COUNTRIES
    }
    assert found["gift"].categories == {
        gift: sum(row["gift"] is gift for row in members) for gift in (True, False)
    }


def test_rows_are_the_events_that_enter_the_tiles(shop: Shop) -> None:
    within = TimeRange(START + 12_345, START + 2 * DAY_MS + 6)
    tables = list(shop.reader().rows(["t", "amount", "country"], within))
    found = pa.concat_tables(tables).to_pylist()
    expected = [
        {name: row[name] for name in ("t", "amount", "country")}
        for row in shop.members(within.low_ms, within.high_ms)
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_tiles_of_entities_tell_the_same_of_all_of_them(shop: Shop) -> None:
    """A view with keys skips the events without one; for all others it equals ``kept``."""
    within = TimeRange(START + 1, START + 2 * DAY_MS + 1)
    (column,) = shop.reader("spend").statistics(["price"], within)
    members = [
        r for r in shop.members(within.low_ms, within.high_ms) if r["customer_id"] is not None
    ]
    prices = [row["price"] for row in members if row["price"] is not None]
    assert (column.rows, column.low, column.high) == (len(members), min(prices), max(prices))
    assert column.moments is not None
    assert column.moments.mean == pytest.approx(float(reference_moments(prices)[0]), rel=1e-15)
    assert column.bins is None


def test_an_unknown_column_is_reported_with_those_that_there_are(shop: Shop) -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown column 'cost' of view 'kept'; available: amount"
    ):
        shop.reader().statistics(["cost"], TimeRange())
