"""Windows: which events belong to a window, and which tiles make it up.

All times are UTC milliseconds. A window of length ``w`` read at ``q`` holds the events with
``floor(q - w, hop) <= ts < q``: the end is open, the start is closed and rounded down to the
hop ("sawtooth": up to one hop longer than ``w``, never shorter). ``w = None`` means from the
beginning.

::

    hop        |-------|-------|-------|-------|-------|
    w                   <--------------------->            (q - w, q)
    start      floor(q - w, hop) [                          closed
    q                                         )             open

>>> window_start(q_ms=3_900_000, window_ms=3_600_000, hop_ms=300_000)
300000
>>> parse_duration("90min"), format_duration(5_400_000)
(5400000, '90min')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

import numpy as np
import numpy.typing as npt

from paimon_features.errors import DefinitionError

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

MIN_TIME_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest event time that enters a tile."""
MAX_TIME_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest event time that enters a tile."""

_UNITS = {"ms": 1, "s": SECOND_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}

Times = npt.NDArray[np.int64]


def parse_duration(text: str) -> int:
    """Milliseconds of a duration such as ``"500ms"``, ``"5min"``, ``"1h"``, ``"30d"``, ``"2w"``.

    Raises
    ------
    DefinitionError
        For anything but a positive whole number and a unit.
    """
    match = re.fullmatch(r"(\d+)\s*(ms|s|min|h|d|w)", str(text))
    if match is None or int(match[1]) == 0:
        raise DefinitionError(
            f"duration {text!r}: expected a positive whole number and a unit "
            f"({', '.join(_UNITS)}), for example '5min' or '30d'"
        )
    return int(match[1]) * _UNITS[match[2]]


def format_duration(duration_ms: int) -> str:
    """The shortest text that ``parse_duration`` reads as ``duration_ms``; weeks stay days.

    >>> [format_duration(ms) for ms in (86_400_000, 7 * 86_400_000, 3_600_000, 1_500)]
    ['1d', '7d', '1h', '1500ms']
    """
    for unit in ("d", "h", "min", "s"):
        if duration_ms % _UNITS[unit] == 0:
            # 90 minutes read better than 5400 seconds, 24 hours are a day
            return f"{duration_ms // _UNITS[unit]}{unit}"
    return f"{duration_ms}ms"


@overload
def floor_ms(time_ms: int, step_ms: int) -> int: ...
@overload
def floor_ms(time_ms: Times, step_ms: int) -> Times: ...
def floor_ms(time_ms: int | Times, step_ms: int) -> int | Times:
    """The greatest multiple of ``step_ms`` that is not above ``time_ms``, below zero too.

    >>> floor_ms(-1, 300_000)
    -300000
    """
    return time_ms // step_ms * step_ms


def hop_of(window_ms: int | None, tile_ms: int, resolution: Mapping[int, int] | None = None) -> int:
    """The hop of a window: the step to which its start is rounded down.

    By default one day from 12 days up, one hour from 12 hours up, else five minutes, and never
    finer than the tile. ``resolution`` maps shortest window lengths to hops (both ms) and
    replaces these defaults: the entry with the greatest length not above the window counts.

    >>> [hop_of(w, 300_000) // 60_000 for w in (3_600_000, 43_200_000, 12 * 86_400_000)]
    [5, 60, 1440]
    """
    steps = dict(resolution) if resolution else {12 * HOUR_MS: HOUR_MS, 12 * DAY_MS: DAY_MS}
    if window_ms is None:
        return max(tile_ms, max(steps.values(), default=tile_ms))
    fitting = [length for length in steps if length <= window_ms]
    base = tile_ms if resolution else 5 * MINUTE_MS
    return max(tile_ms, steps[max(fitting)] if fitting else base)


@overload
def window_start(q_ms: int, window_ms: int | None, hop_ms: int) -> int: ...
@overload
def window_start(q_ms: Times, window_ms: int | None, hop_ms: int) -> Times: ...
def window_start(q_ms: int | Times, window_ms: int | None, hop_ms: int) -> int | Times:
    """Start (inclusive) of the window of length ``window_ms`` that is read at ``q_ms``.

    For a window without a beginning it is ``MIN_TIME_MS`` rounded down to the hop.
    """
    if window_ms is None:
        first = floor_ms(MIN_TIME_MS, hop_ms)
        return first if isinstance(q_ms, int) else np.full_like(q_ms, first)
    return floor_ms(q_ms - window_ms, hop_ms)
