"""Fields of times by a calendar and a clock, written in the integer operators of the language.

``local_ms(t, zone)`` is what the zone's clocks show, in ms since 0001-01-01 00:00, and never below
0; all else follows by arithmetic, so that every engine computes the same. Day 0 is a Monday. With
years that begin in January (March) and days counted from the first of them, the leap day is the
last day of four years; see Neri and Schneider, "Euclidean affine functions and their application
to calendar algorithms", 2022, also for the months.

>>> from paimon_features.core.expressions.parse import parse
>>> from paimon_features.core.types.schema import Int64
>>> parse("hour(t)", {"t": Int64}).text
'local_ms(t) % 86400000 // 3600000'
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from paimon_features.core.errors import DefinitionError, ExpressionError
from paimon_features.core.expressions.nodes import Call, Expression, Literal
from paimon_features.core.times.zones import Transitions, transitions
from paimon_features.core.types.schema import Date, Int64, String, Timestamp
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    SECOND_MS,
    CalendarUnit,
    check_time_zone,
)

TIMES = (Int64, Timestamp, Date)
UTC = Transitions((), (0,))
_LENGTHS = {
    "second": SECOND_MS, "minute": MINUTE_MS, "hour": HOUR_MS, "day": DAY_MS, "week": 7 * DAY_MS,
}  # fmt: skip
_LONG = {
    "week": CalendarUnit.THIS_WEEK, "month": CalendarUnit.THIS_MONTH,
    "year": CalendarUnit.THIS_YEAR,
}  # fmt: skip
UNITS = (*_LENGTHS, "month", "year")
_OF_DAYS = ("year", "month", "day", "day_of_week", "day_of_year", "week", "is_weekend")
_FIRST_MARCH = 306
"""Days from 1 March of the year 0 to 1 January of the year 1."""


def _binary(op: str, left: Expression, right: int) -> Expression:
    return Call(Int64, op, (left, Literal(Int64, right)))


def _scaled(factor: int, value: Expression, add: int) -> Expression:
    return _binary("add", Call(Int64, "mul", (Literal(Int64, factor), value)), add)


def _days(local: Expression) -> Expression:
    return _binary("floordiv", local, DAY_MS)


def _in_century(days: Expression) -> Expression:
    """Return four times the day of its century, and 3; centuries begin with years 1, 101, ..."""
    day = _binary("floordiv", _binary("mod", _scaled(4, days, 3), 146_097), 4)
    return _scaled(4, day, 3)


def _in_year(days: Expression) -> Expression:
    """Return the day of the year, from 0, of days since the first of a year after a leap day."""
    return _binary("floordiv", _binary("mod", _in_century(days), 1461), 4)


def _months(local: Expression) -> Expression:
    """Return months, and days of the month in the lower 16 bits, from March."""
    return _scaled(2141, _in_year(_binary("add", _days(local), _FIRST_MARCH)), 197_913)


def _year(local: Expression) -> Expression:
    days = _days(local)
    century = _binary("floordiv", _scaled(4, days, 3), 146_097)
    return Call(
        Int64, "add", (_scaled(100, century, 1), _binary("floordiv", _in_century(days), 1461))
    )


def _month(local: Expression) -> Expression:
    month = _binary("floordiv", _months(local), 65_536)  # 3 to 14
    return _binary("add", _binary("mod", _binary("add", month, 11), 12), 1)


def _days_of_month(local: Expression) -> Expression:
    return _binary("floordiv", _binary("mod", _months(local), 65_536), 2141)


def _week(local: Expression) -> Expression:
    """Return the ISO week: that of the year of its Thursday."""
    monday = _binary("mul", _binary("floordiv", _days(local), 7), 7)
    thursday = _binary("add", monday, 3)
    return _binary("add", _binary("floordiv", _in_year(thursday), 7), 1)


def _day_of_week(local: Expression) -> Expression:
    return _binary("add", _binary("mod", _days(local), 7), 1)


def _part(length: int, unit: int) -> Callable[[Expression], Expression]:
    return lambda local: _binary("floordiv", _binary("mod", local, length), unit)


FIELDS: Mapping[str, Callable[[Expression], Expression]] = {
    "year": _year, "month": _month,
    "day": lambda local: _binary("add", _days_of_month(local), 1),
    "day_of_week": _day_of_week,
    "day_of_year": lambda local: _binary("add", _in_year(_days(local)), 1),
    "week": _week,
    "hour": _part(DAY_MS, HOUR_MS), "minute": _part(HOUR_MS, MINUTE_MS),
    "second": _part(MINUTE_MS, SECOND_MS),
}  # fmt: skip
"""The fields, each from the local time."""


def elapsed(unit: str, local: Expression) -> Expression:
    """Return the local time since the start of its unit, in ms."""
    if unit in _LENGTHS:
        return _binary("mod", local, _LENGTHS[unit])
    days = _days_of_month(local) if unit == "month" else _in_year(_days(local))
    of_day = _binary("mod", local, DAY_MS)
    return Call(Int64, "add", (of_day, _binary("mul", days, DAY_MS)))


def zone_args(function: str, args: Sequence[Expression]) -> tuple[Expression, ...]:
    """Return a literal time zone with the digest of its transitions; nothing for none and UTC.

    Raises
    ------
    ExpressionError
        If the zone is not a literal or not in the database.
    """
    if not args:
        return ()
    zone, *digest = args
    for arg in args:
        if not isinstance(arg, Literal) or arg.type is not String or not arg.value:
            raise ExpressionError(
                f"{function} takes a time zone as a constant, for example 'Europe/London', "
                f"got {arg.text}"
            )
    if digest:
        return tuple(args)
    numbers = _of_zone(function, zone.value)  # type: ignore[attr-defined]
    return () if numbers.offsets == UTC.offsets else (zone, Literal(String, numbers.digest))


def _of_zone(function: str, time_zone: str) -> Transitions:
    try:
        return transitions(time_zone)
    except (OSError, ValueError, ModuleNotFoundError):
        try:
            check_time_zone(time_zone)
        except DefinitionError as error:
            raise ExpressionError(f"{function}: {error}") from None
        raise ExpressionError(
            f"{function}: time_zone={time_zone!r} is not in the installed package tzdata; install "
            "the package, or a newer one"
        ) from None


def transitions_of(args: Sequence[Expression]) -> Transitions:
    """Return the transitions of the arguments that ``zone_args`` made.

    Raises
    ------
    ExpressionError
        If the installed database differs from that of the definition.
    """
    if not args:
        return UTC
    zone, digest = (arg.value for arg in args)  # type: ignore[attr-defined]
    numbers = _of_zone("local_ms", zone)
    if numbers.digest != digest:
        raise ExpressionError(
            f"the definition was made with other clock changes of {zone!r} (digest {digest}) than "
            f"the installed package tzdata has ({numbers.digest}); install that version, or "
            "define it again"
        )
    return numbers


def check_times(function: str, args: Sequence[Expression]) -> None:
    """Raise ExpressionError unless the first argument is a time, with a zone where that applies."""
    kind = args[0].type
    if kind not in TIMES:
        raise ExpressionError(
            f"{function} needs a timestamp, a date or an int64 of UTC milliseconds, got "
            f"{args[0].text} of {kind.text}"
        )
    if kind is Date and len(args) > 1:
        raise ExpressionError(f"{function}: {args[0].text} is a date, so it has no time zone")


def local_time(function: str, t: Expression, zone: Sequence[Expression]) -> Call:
    """Return the call of ``local_ms``."""
    arg = Literal(Int64, None) if isinstance(t, Literal) and t.value is None else t
    check_times(function, (arg, *zone))
    return Call(Int64, "local_ms", (arg, *zone_args(function, zone)))


def truncated(unit: str, local: Call) -> Call:
    """Return the call of ``truncated`` for the time of a call of ``local_ms``."""
    t, *zone = local.args
    return Call(t.type, "truncated", (t, elapsed(unit, local), Literal(String, unit), *zone))


def check_field(function: str, kind: object) -> None:
    """Raise ExpressionError for the hour of a date."""
    if kind is Date and function not in _OF_DAYS:
        raise ExpressionError(f"{function} of a date is always 0; it needs a time")


def bounds(numbers: Transitions) -> tuple[int, int]:
    """Return the times, inclusive, that are in the years 1 to 9999 in UTC and locally."""
    first, last = numbers.offsets[0], numbers.offsets[-1]
    return MIN_TIME_MS - min(first, 0), MAX_TIME_MS - max(last, 0)


@lru_cache(maxsize=1024)
def first_start(unit: str, numbers: Transitions) -> int:
    """Return the first start of a unit that is not before the year 1, UTC ms."""
    earliest = bounds(numbers)[0]
    label = _floor(unit, earliest + numbers.offsets[0])
    start = numbers.first_shown(label)
    return start if start >= MIN_TIME_MS else numbers.first_shown(_next(unit, label))


@lru_cache(maxsize=1024)
def changed_units(unit: str, numbers: Transitions) -> tuple[tuple[int, int], ...]:
    """Return start and end, UTC ms, of each unit within which the clocks change.

    In these the start is not that of the local time by the offset of a time.
    """
    units: dict[int, int] = {}
    for change, latest in zip(numbers.changes, numbers.latest_shown(), strict=True):
        label = _floor(unit, latest)
        start, end = numbers.first_shown(label), numbers.first_shown(_next(unit, label))
        shown = change + numbers.offset_at(change)
        inner = bisect_right(numbers.changes, end - 1) - bisect_right(numbers.changes, change)
        if inner or start < change or _floor(unit, shown) != shown:
            units[start] = end
    return tuple(sorted(units.items()))


def _floor(unit: str, local_ms: int) -> int:
    if unit in _LONG:
        return _LONG[unit].first_day(local_ms // DAY_MS) * DAY_MS
    return local_ms - local_ms % _LENGTHS[unit]


def _next(unit: str, local_ms: int) -> int:
    if unit in _LONG:
        return _LONG[unit].next_first_day(local_ms // DAY_MS) * DAY_MS
    return local_ms + _LENGTHS[unit]
