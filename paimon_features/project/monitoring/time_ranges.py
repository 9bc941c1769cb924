"""Ranges of event time, and their split into tiles and raw events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS, floor_ms


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Event times ``since_ms <= t < until_ms`` (UTC ms); None: unbounded.

    >>> TimeRange(0, 10).holds(10), TimeRange(0, 10).holds(0), TimeRange().holds(5)
    (False, True, True)
    """

    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.low_ms >= self.high_ms:
            raise RequestError(
                f"the time range {self} is empty; its end is exclusive and must be after its start"
            )

    def __str__(self) -> str:
        ends = (self.since_ms, self.until_ms)
        texts = [None if end is None else _text(end) for end in ends]
        return f"{texts[0] or 'the beginning'} to {texts[1] or 'the end'}"

    @property
    def low_ms(self) -> int:
        """The start (inclusive); the minimum time if unbounded."""
        return MIN_TIME_MS if self.since_ms is None else self.since_ms

    @property
    def high_ms(self) -> int:
        """The end (exclusive); after the maximum time if unbounded."""
        return MAX_TIME_MS + 1 if self.until_ms is None else self.until_ms

    def holds(self, time_ms: int) -> bool:
        """Return whether a time is in the range."""
        return self.low_ms <= time_ms < self.high_ms

    def split(self, tile_ms: int) -> tuple[TimeRange | None, list[TimeRange]]:
        """Return the range of complete tiles (None: none), and the parts of tiles at the ends.

        An unbounded end cuts no tile.

        >>> whole, parts = TimeRange(5, 32).split(10)
        >>> (whole.since_ms, whole.until_ms), [(p.since_ms, p.until_ms) for p in parts]
        ((10, 30), [(5, 10), (30, 32)])
        >>> TimeRange(5, 8).split(10)
        (None, [TimeRange(since_ms=5, until_ms=8)])
        """
        first = None if self.since_ms is None else -floor_ms(-self.since_ms, tile_ms)
        last = None if self.until_ms is None else floor_ms(self.until_ms, tile_ms)
        if first is not None and last is not None and first > last:
            return None, [self]
        parts = []
        if first is not None and first != self.since_ms:
            parts.append(TimeRange(self.since_ms, first))
        if last is not None and last != self.until_ms:
            parts.append(TimeRange(last, self.until_ms))
        return (None if first is not None and first == last else TimeRange(first, last)), parts


def _text(time_ms: int) -> str:
    moment = np.datetime64(time_ms, "ms")
    return str(np.datetime_as_string(moment, "s" if time_ms % 1000 == 0 else "ms"))
