"""Offsets of time zones from UTC as numbers: the changes of their clocks from 1900 to 2100.

The IANA database is that of the package ``tzdata``, which is the same on every host that
installs the same version, and never that of the host. Before 1900 and from 2100 on, a zone has
the first and the last of its offsets.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import accumulate
from zoneinfo import ZoneInfo

from paimon_features.core.times.durations import DAY_MS, SECOND_MS

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST = (dt.datetime(1900, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(seconds=1)
_END = (dt.datetime(2100, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(seconds=1)
_WEEK_S = 7 * DAY_MS // SECOND_MS
_HEADER = struct.Struct(">4sc15x6l")


@dataclass(frozen=True, slots=True)
class Transitions:
    """The changes of a zone's clocks, UTC ms, and its offset before, between and after them."""

    changes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that identify the numbers."""
        text = repr((self.changes, self.offsets))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def offset_at(self, time_ms: int) -> int:
        """Return what the clocks show less UTC, in ms."""
        return self.offsets[bisect_right(self.changes, time_ms)]

    def latest_shown(self) -> Iterator[int]:
        """Yield, for each change, the latest local time that the clocks have shown then, ms."""
        before = accumulate(
            (
                change + offset - 1
                for change, offset in zip(self.changes, self.offsets, strict=False)
            ),
            max,
        )
        for change, offset, latest in zip(self.changes, self.offsets[1:], before, strict=True):
            yield max(change + offset, latest)

    def first_shown(self, local_ms: int) -> int:
        """Return the first instant, UTC ms, at which the clocks show this time or a later one."""
        ends = [change + offset for change, offset in zip(self.changes, self.offsets, strict=False)]
        at = bisect_right(list(accumulate(ends, max)), local_ms)
        start = local_ms - self.offsets[at]
        return max(start, self.changes[at - 1]) if at else start


@lru_cache(maxsize=256)
def transitions(time_zone: str) -> Transitions:
    """Return the transitions of a zone of the IANA database.

    Raises
    ------
    OSError, ValueError
        If the package ``tzdata`` has no such zone.

    >>> madrid = transitions("Europe/Madrid")
    >>> len(madrid.changes), [madrid.offset_at(t) // 60_000 for t in (0, 1_720_000_000_000)]
    (286, [60, 120])
    """
    data = resources.files("tzdata").joinpath("zoneinfo", *_parts(time_zone)).read_bytes()
    zone = ZoneInfo.from_file(io.BytesIO(data), key=time_zone)
    changes: list[int] = []
    offsets = [_offset_ms(zone, _FIRST)]
    for second in _candidates(data, zone):
        offset = _offset_ms(zone, second)
        if offset != offsets[-1]:
            changes.append(second * SECOND_MS)
            offsets.append(offset)
    return Transitions(tuple(changes), tuple(offsets))


def _parts(time_zone: str) -> Sequence[str]:
    parts = time_zone.split("/")
    if not all(part.replace("_", "").replace("-", "").replace("+", "").isalnum() for part in parts):
        raise FileNotFoundError(time_zone)
    return parts


def _candidates(data: bytes, zone: ZoneInfo) -> Iterator[int]:
    """Yield, in order, the seconds at which the offset may change."""
    last = _FIRST
    for second in _listed(data):
        if _FIRST < second < _END:
            last = second
            yield second
    # from there on a rule changes the clocks, months apart
    for low in range(last, _END - 1, _WEEK_S):
        high = min(low + _WEEK_S, _END - 1)
        before = _offset_ms(zone, low)
        if _offset_ms(zone, high) == before:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _offset_ms(zone, middle) != before else (middle, high)
        yield high


def _listed(data: bytes) -> Sequence[int]:
    """Return the changes that a file lists (RFC 9636): 64-bit seconds in its second part."""
    _, version, *counts = _HEADER.unpack_from(data)
    assert version >= b"2"
    utc, standard, leaps, times, types, letters = counts
    at = _HEADER.size + times * 5 + types * 6 + letters + leaps * 8 + standard + utc
    _, _, _, _, _, times, _, _ = _HEADER.unpack_from(data, at)
    return struct.unpack_from(f">{times}q", data, at + _HEADER.size)


def _offset_ms(zone: ZoneInfo, second: int) -> int:
    offset = (_EPOCH + dt.timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // dt.timedelta(milliseconds=1)
