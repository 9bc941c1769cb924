"""Fields and starts of units of times: every engine against ``zoneinfo``, around clock changes."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import (
    Expression,
    calendar_time,
    evaluate,
    overflow_guard,
    parse,
    to_duckdb,
    to_flink,
)
from paimon_features.core.times.zones import transitions
from paimon_features.core.types.schema import Date, Int64, String, Timestamp
from paimon_features.core.windows import (
    DAY_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    CalendarUnit,
    calendars,
)
from paimon_features.core.windows.calendars import unit_start
from paimon_features.testing.reference import clocks
from paimon_features.testing.reference.expressions import evaluate_row
from tests.generators import ZONES
from tests.long_cases import quick_cases

COLUMNS = {"t": Int64, "w": Timestamp, "d": Date, "s": String}
ODD_ZONES = (
    *ZONES, "Europe/Madrid", "Africa/Casablanca", "America/Havana", "Asia/Gaza", "Europe/Dublin",
    "Pacific/Kwajalein", "Antarctica/Troll", "Africa/Monrovia", "America/Toronto",
)  # fmt: skip
"""Also offsets of seconds, two changes within a month, a day that came twice."""
SOME_LONG = quick_cases(ODD_ZONES, "UTC", "Asia/Kathmandu", "Pacific/Kwajalein", "America/St_Johns")
FIELDS = (*calendar_time.FIELDS, "is_weekend")
UNITS = {
    "day": CalendarUnit.TODAY, "week": CalendarUnit.THIS_WEEK, "month": CalendarUnit.THIS_MONTH,
    "year": CalendarUnit.THIS_YEAR,
}  # fmt: skip


def times(zone: str, rng: random.Random, count: int) -> list[int]:
    """Times next to changes of the clocks, to starts of units, at both ends, and anywhere."""
    changes = transitions(zone).changes or (0,)
    steps = (0, -1, 1, 999, 1000, 60_000, 1_800_000, 3_600_000, 7_200_000, DAY_MS, -DAY_MS)
    near = [rng.choice(changes) + rng.choice(steps) + rng.choice(steps) for _ in range(count)]
    ends = [bound + step for bound in (MIN_TIME_MS, MAX_TIME_MS) for step in (-1, 0, 1, 40_000_000)]
    turns = [-2_208_988_800_000, 4_102_444_800_000, 0]
    turns = [turn + step for turn in turns for step in (-DAY_MS, -1, 0, 1, DAY_MS)]
    years = [dt.date(rng.randint(1, 9999), rng.choice((1, 2, 3, 12)), 1) for _ in range(count // 4)]
    starts = [(year - dt.date(1970, 1, 1)).days * DAY_MS + rng.choice(steps) for year in years]
    anywhere = [rng.randint(MIN_TIME_MS, MAX_TIME_MS) for _ in range(count // 4)]
    return [*near, *ends, *turns, *starts, *anywhere, 2**63 - 1, -(2**63)]


def rows_of(instants: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [dict.fromkeys(COLUMNS)]
    for t in instants:
        inside = min(max(t, MIN_TIME_MS), MAX_TIME_MS)
        rows.append({"t": t, "w": inside, "d": inside // DAY_MS, "s": "UTC"})
    return rows


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({n: pa.array([r[n] for r in rows], k.arrow) for n, k in COLUMNS.items()})


def in_numpy(expr: Expression, rows: list[dict[str, Any]]) -> list[Any]:
    table = table_of(rows)
    column = evaluate(expr, {n: Column.from_arrow(table[n]) for n in COLUMNS}, len(rows))
    return [v if m else None for v, m in zip(column.values.tolist(), column.mask, strict=True)]


def plain(value: Any) -> Any:
    """A date or time of an engine as the number that a row has."""
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(milliseconds=1)
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


def shown_field(name: str, t: int, zone: str) -> int | bool | None:
    """The field by Python's calendar."""
    local = clocks.shown(t, zone)
    if local is None:
        return None
    at = dt.datetime(1, 1, 1) + dt.timedelta(milliseconds=local - MIN_TIME_MS)
    if name == "is_weekend":
        return at.isoweekday() >= 6
    if name in ("week", "day_of_week", "day_of_year"):
        return {
            "week": at.isocalendar().week, "day_of_week": at.isoweekday(),
            "day_of_year": at.timetuple().tm_yday,
        }[name]  # fmt: skip
    value: int = getattr(at, name)
    return value


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def in_duckdb(
    connection: duckdb.DuckDBPyConnection, expr: Expression, rows: list[dict[str, Any]]
) -> list[Any]:
    connection.register("given", table_of(rows))
    fetched = connection.execute(f"SELECT {to_duckdb(expr)} FROM given").fetchall()
    return [plain(value) for (value,) in fetched]


@pytest.mark.parametrize("zone", SOME_LONG)
def test_fields_are_those_that_the_clocks_show(
    zone: str, connection: duckdb.DuckDBPyConnection
) -> None:
    rows = rows_of(times(zone, random.Random(zone), 80))
    for name in FIELDS:
        expr = parse(f"{name}(t, '{zone}')", COLUMNS)
        expected = [r["t"] if r["t"] is None else shown_field(name, r["t"], zone) for r in rows]
        assert in_numpy(expr, rows) == expected, name
        assert in_duckdb(connection, expr, rows) == expected, name
        assert [evaluate_row(expr, row) for row in rows] == expected, name
        assert overflow_guard(expr) is None


@pytest.mark.parametrize("zone", SOME_LONG)
def test_units_begin_when_the_clocks_first_show_their_start(
    zone: str, connection: duckdb.DuckDBPyConnection
) -> None:
    rows = rows_of(times(zone, random.Random(zone), 30))
    for unit in calendar_time.UNITS:
        for column in ("t", "w"):
            expr = parse(f"date_trunc('{unit}', {column}, '{zone}')", COLUMNS)
            assert expr.type is COLUMNS[column]
            expected = [evaluate_row(expr, row) for row in rows]
            assert in_numpy(expr, rows) == expected, (unit, column)
            assert in_duckdb(connection, expr, rows) == expected, (unit, column)
        assert overflow_guard(expr) is None


@pytest.mark.parametrize("zone", ODD_ZONES)
@pytest.mark.parametrize("unit", UNITS)
def test_date_trunc_is_the_start_of_a_calendar_window(
    zone: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the windows' database is the host's, which may be another version
    monkeypatch.setattr(calendars, "ZoneInfo", clocks.zone_info)
    calendars.day_start.cache_clear()
    instants = [t for t in times(zone, random.Random(zone), 300) if 0 < t < 4 * 10**12]
    expr = parse(f"date_trunc('{unit}', t, '{zone}')", COLUMNS)
    starts = evaluate(expr, {"t": Column(np.array(instants))}, len(instants)).values
    expected = unit_start(UNITS[unit], zone, np.array(instants)).tolist()
    calendars.day_start.cache_clear()
    assert starts.tolist() == expected


def test_a_part_of_a_day_that_comes_twice_begins_once() -> None:
    # St John's: clocks went from 00:01 of 1 November 2009 back to 23:01 of 31 October
    change = 1_257_042_660_000
    day, hour = (
        parse(f"date_trunc('{u}', t, 'America/St_Johns')", COLUMNS) for u in ("day", "hour")
    )
    shown = parse("hour(t, 'America/St_Johns')", COLUMNS)
    batch = {"t": Column(np.array([change - 60_001, change - 1, change, change + 3_600_000]))}
    midnight = change - 60_000
    yesterday = midnight - DAY_MS
    assert evaluate(shown, batch, 4).values.tolist() == [23, 0, 23, 0]
    assert evaluate(day, batch, 4).values.tolist() == [yesterday, midnight, midnight, midnight]
    assert evaluate(hour, batch, 4).values.tolist() == [midnight - 3_600_000, *[midnight] * 3]


def test_dates_are_days_in_utc(connection: duckdb.DuckDBPyConnection) -> None:
    rows = rows_of(times("UTC", random.Random(3), 80))
    for name in ("year", "month", "day", "day_of_week", "day_of_year", "week", "is_weekend"):
        expr = parse(f"{name}(d)", COLUMNS)
        expected = [
            None if r["d"] is None else shown_field(name, r["d"] * DAY_MS, "UTC") for r in rows
        ]
        assert in_numpy(expr, rows) == in_duckdb(connection, expr, rows) == expected, name
    for text in ("date_trunc('week', d)", "date_trunc('month', d)", "date_trunc('year', d)"):
        expr = parse(text, COLUMNS)
        assert expr.type is Date
        expected = [evaluate_row(expr, row) for row in rows]
        assert in_numpy(expr, rows) == in_duckdb(connection, expr, rows) == expected, text
    assert parse("date_trunc('hour', d)", COLUMNS).text == "d"


@pytest.mark.parametrize(
    ("first", "last", "days"),
    [(0, DAY_MS - 1, 0), (0, DAY_MS, 1), (5, DAY_MS + 4, 0), (0, -1, -1), (-DAY_MS, 0, 1),
     (None, 0, None), (0, None, None), (MIN_TIME_MS - 1, 0, None)],
)  # fmt: skip
def test_an_age_is_in_completed_days(first: int | None, last: int | None, days: int | None) -> None:
    columns = {"a": Int64, "b": Int64}
    expr = parse("age_days(a, b)", columns)
    batch = {
        n: Column.from_arrow(pa.array([v], pa.int64()))
        for n, v in zip("ab", (first, last), strict=True)
    }
    (age,) = evaluate(expr, batch, 1).to_arrow(pa.int64()).to_pylist()
    assert age == evaluate_row(expr, {"a": first, "b": last}) == days
    assert overflow_guard(expr) is None


def test_an_age_since_a_date_counts_from_its_start() -> None:
    expr = parse("age_days(d, w)", COLUMNS)
    assert evaluate_row(expr, {"d": 1, "w": 2 * DAY_MS - 1}) == 0
    assert evaluate_row(expr, {"d": 1, "w": 2 * DAY_MS}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dayofweek(t)", r"unknown function 'dayofweek'; write day_of_week\(t\)"),
        ("extract(hour from t)", r"unknown function 'extract'; write hour\(t\)"),
        ("date_part('dow', t)", r"unknown function 'date_part'; write day_of_week\(t\)"),
        ("datediff(d, w)", r"write age_days\(first, t\)"),
        ("trunc(t)", r"write date_trunc\(unit, t\)"),
        (
            "date_trunc('hours', t)",
            "one of 'second', 'minute', 'hour', 'day', 'week', 'month', 'year'",
        ),
        ("hour(d)", "hour of a date is always 0"),
        ("year(d, 'Europe/Madrid')", "d is a date, so it has no time zone"),
        (
            "year(s)",
            "year needs a timestamp, a date or an int64 of UTC milliseconds, got s of string",
        ),
        ("hour(t, s)", "takes a time zone as a constant"),
        ("hour(t, 'Europe/Madird')", "did you mean 'Europe/Madrid'"),
        ("hour(t, '../etc/passwd')", "not in the IANA database"),
        ("hour(t, 'Europe')", "'Europe' is not in the"),
        ("hour(t, 'leapseconds')", "'leapseconds' is not in the"),
        ("hour(t, 'UTC', 'UTC')", "hour takes 1 to 2 arguments, got 3"),
        ("truncated(t, 5, 'day')", r"write that"),
    ],
)
def test_what_is_rejected_names_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text, COLUMNS)


def test_the_canonical_text_has_the_digest_of_the_clock_changes() -> None:
    expr = parse("date_trunc('month', w, 'Europe/Madrid')", COLUMNS)
    digest = transitions("Europe/Madrid").digest
    assert digest in expr.text
    assert parse(expr.text, COLUMNS) == expr
    assert parse("hour(t, 'Etc/UTC')", COLUMNS) == parse("hour(t)", COLUMNS)
    # a definition of another database can be read and compared, not computed
    other = parse(expr.text.replace(digest, "0" * 12), COLUMNS)
    assert other != expr
    batch = {"w": Column(np.zeros(1, np.int64))}
    for compute in (to_flink, to_duckdb, lambda e: evaluate(e, batch, 1)):
        with pytest.raises(ExpressionError, match="other clock changes of 'Europe/Madrid'"):
            compute(other)


FLINK_TEXTS = (
    *(f"{name}(t)" for name in FIELDS), *(f"{name}(w)" for name in FIELDS),
    *(f"{name}(d)" for name in ("year", "month", "day", "week", "day_of_year", "is_weekend")),
    *(f"CAST(date_trunc('{unit}', t) AS string)" for unit in calendar_time.UNITS),
    "date_trunc('week', w) = w", "date_trunc('month', d) = d", "date_trunc('year', d) < d",
    "age_days(d, w)", "age_days(w, t)", "age_days(d, DATE '2000-02-29')",
    *(f"{name}(t, 'America/St_Johns')" for name in ("hour", "year", "month")),
    "minute(w, 'Africa/Monrovia')", "week(w, 'Pacific/Apia')",
    *(f"date_trunc('{unit}', t, 'Europe/Madrid')" for unit in ("hour", "day", "month")),
    "date_trunc('minute', w, 'Asia/Kathmandu') = w", "date_trunc('year', t, 'Pacific/Kwajalein')",
    "date_trunc('day', w, 'America/Sao_Paulo') < TIMESTAMP '2000-01-01'",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.flink
def test_flink_computes_dates_and_times_as_the_reference_implementation(run_flink: Any) -> None:
    rng = random.Random(5)
    zones = ("America/St_Johns", "Europe/Madrid", "Pacific/Kwajalein", "Asia/Kathmandu")
    rows = rows_of([t for zone in zones for t in times(zone, rng, 30)])
    expressions = [parse(text, COLUMNS) for text in FLINK_TEXTS]
    wrong = []
    columns = run_flink(COLUMNS, rows, [to_flink(expr) for expr in expressions])
    for text, expr, values in zip(FLINK_TEXTS, expressions, columns, strict=True):
        for row, value in zip(rows, values, strict=True):
            if plain(value) != evaluate_row(expr, row):
                wrong.append((text, row, value, evaluate_row(expr, row)))
                break
    assert not wrong
