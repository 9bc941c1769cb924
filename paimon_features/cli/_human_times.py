"""Times as people write them: ``2 days ago``, ``yesterday``, ``2011-12-01``."""

from __future__ import annotations

import re

from paimon_features.core.errors import ConfigurationError

_UNITS = {
    "second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "m": 60, "hour": 3_600, "h": 3_600,
    "day": 86_400, "d": 86_400, "week": 604_800, "w": 604_800, "month": 2_592_000,
    "year": 31_536_000,
}  # fmt: skip
_AGO = re.compile(r"(?:(\d{1,9})|an?)\s*([a-z]+?)s?\s+ago|-\s*(\d{1,9})\s*([a-z]+?)s?")


def human_time_ms(text: str, clock_ms: int) -> int:
    """UTC milliseconds, an ISO 8601 time (UTC unless it has an offset), or a time before the clock.

    A month is 30 days, a year 365.

    >>> clock_ms = 1_323_434_999_000
    >>> human_time_ms("1323434999000", 0), human_time_ms("2011-12-09T12:49:59", 0)
    (1323434999000, 1323434999000)
    >>> human_time_ms("2011-12-09T13:50+01:00", 0) - clock_ms
    1000
    >>> clock_ms - human_time_ms("2 days ago", clock_ms), human_time_ms("now", 7)
    (172800000, 7)
    >>> human_time_ms("yesterday", clock_ms), human_time_ms("-1h", 3_600_000)
    (1323302400000, 0)

    Raises
    ------
    ConfigurationError
        For anything else, and for a number below 1e11: more likely a year, or seconds.
    """
    import datetime as dt

    bare = text.strip().lower()
    midnight = clock_ms // 86_400_000 * 86_400_000
    named = {"now": clock_ms, "today": midnight, "yesterday": midnight - 86_400_000}
    if bare in named:
        return named[bare]
    ago = _AGO.fullmatch(bare)
    if ago is not None:
        unit = ago[2] or ago[4]
        seconds = _UNITS.get(unit) or _UNITS.get(f"{unit}s")
        if seconds is not None:
            return clock_ms - int(ago[1] or ago[3] or 1) * seconds * 1_000
    try:
        if bare.isdecimal() and int(bare) >= 10**11:
            return int(bare)
        if bare.isdecimal() and len(bare) != 8:
            raise ValueError("a number without a unit")
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        hint = ""
        if re.fullmatch(r"\d{9,10}", bare):
            hint = f"; in seconds? then write {bare}000"
        raise ConfigurationError(
            f"time {text!r}: expected UTC milliseconds, or a time such as 2011-12-09T12:50:00, "
            f"'2 days ago', 'yesterday' or 'now'{hint}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
