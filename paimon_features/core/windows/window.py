"""A window: from when to when, for any time of reading. Every path uses this one definition.

All times are UTC milliseconds, a window is half-open ``[start, end)``. Read at ``q``, a window
of length ``w``, hop ``h`` and offset ``o`` over tiles of ``t`` is, by its kind::

    kind       at               start            end
    sawtooth   q - o            floor(at - w, h) q, or floor(at, t) with an offset
    hop        floor(q - o, h)  floor(at - w, h) at
    exact      q - o            at - w           at

    hop        |-------|-------|-------|-------|-------|
    w                   <--------------------->            (q - w, q)
    sawtooth   [-----------------------------)             start rounded down: never shorter
    hop        [---------------------------)               ends at the last hop
    exact                [-------------------)             to the millisecond

A calendar window begins at the start of its unit (``calendars``) instead of ``at - w``; a
lifetime has no start.

>>> hour = Window(3_600_000, hop_ms=300_000, tile_ms=300_000)
>>> hour.bounds(3_900_001)
(300000, 3900001)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args, overload

import numpy as np

from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import (
    DAY_MS,
    HOUR_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    floor_ms,
    format_duration,
    parse_duration,
)
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows.calendars import CalendarUnit, unit_start

Kind = Literal["sawtooth", "hop", "exact"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Length = int | CalendarUnit | None
"""The length of a window: a number of ms, to the start of a unit, or unbounded (None)."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window of one view; the module docstring explains the fields.

    ``time_zone`` is set for calendar windows only. The hop is a multiple of the
    tile; for an exact window it is the tile, and rounds nothing.
    """

    length: Length
    hop_ms: int
    tile_ms: int
    kind: Kind = "sawtooth"
    offset_ms: int = 0
    time_zone: str | None = None

    # -- bounds ---------------------------------------------------------------------------

    @overload
    def start(self, as_of_ms: int) -> int: ...
    @overload
    def start(self, as_of_ms: Ints) -> Ints: ...
    def start(self, as_of_ms: int | Ints) -> int | Ints:
        """Return the start (inclusive) of the window read at ``as_of_ms``; monotonic in
        ``as_of_ms``.

        For a lifetime, the earliest time, rounded down to the hop.
        """
        if self.length is None:
            first = floor_ms(MIN_TIME_MS, self.hop_ms)
            return first if isinstance(as_of_ms, int) else np.full_like(as_of_ms, first)
        at = floor_ms(as_of_ms - self.offset_ms, self.hop_ms if self.kind == "hop" else 1)
        if isinstance(self.length, CalendarUnit):
            assert self.time_zone is not None
            begin = unit_start(self.length, self.time_zone, at)
        else:
            begin = at - self.length
        return floor_ms(begin, self.start_step_ms)

    @overload
    def end(self, as_of_ms: int) -> int: ...
    @overload
    def end(self, as_of_ms: Ints) -> Ints: ...
    def end(self, as_of_ms: int | Ints) -> int | Ints:
        """Return the end (exclusive) of the window read at ``as_of_ms``; not after ``as_of_ms``."""
        return floor_ms(as_of_ms - self.offset_ms if self.offset_ms else as_of_ms, self.end_step_ms)

    @overload
    def bounds(self, as_of_ms: int) -> tuple[int, int]: ...
    @overload
    def bounds(self, as_of_ms: Ints) -> tuple[Ints, Ints]: ...
    def bounds(self, as_of_ms: int | Ints) -> tuple[int | Ints, int | Ints]:
        """Return start (inclusive) and end (exclusive) of the window read at ``as_of_ms``."""
        return self.start(as_of_ms), self.end(as_of_ms)

    @overload
    def read_time(self, as_of_ms: int) -> int: ...
    @overload
    def read_time(self, as_of_ms: Ints) -> Ints: ...
    def read_time(self, as_of_ms: int | Ints) -> int | Ints:
        """Return the time to which values decay: ``as_of_ms``, rounded down for a hop window."""
        return self.end(as_of_ms) + self.offset_ms if self.kind == "hop" else as_of_ms

    # -- edges within tiles --------------------------------------------------------------

    @property
    def start_step_ms(self) -> int:
        """Starts are multiples of this, ms."""
        return 1 if self.kind == "exact" else self.hop_ms

    @property
    def end_step_ms(self) -> int:
        """Ends are multiples of this, ms; 1 if they may be any time."""
        if self.kind == "hop":
            return self.hop_ms
        # online the events within a tile cannot be separated. At the open end that does no harm,
        # as all that have arrived count; with an offset, training would see less than serving
        return self.tile_ms if self.kind == "sawtooth" and self.offset_ms else 1

    @property
    def needs_head(self) -> bool:
        """Whether the window may end within a tile, so that raw events are needed there."""
        return self.end_step_ms % self.tile_ms > 0

    @property
    def needs_tail(self) -> bool:
        """Whether the window may start within a tile."""
        return self.length is not None and self.start_step_ms % self.tile_ms > 0

    @property
    def fits_in_a_tile(self) -> bool:
        """Whether start and end may both lie inside one tile, not at its edges."""
        if isinstance(self.length, int):
            return self.needs_tail and self.length < self.tile_ms
        return self.needs_tail

    @property
    def is_online(self) -> bool:
        """Whether tiles alone are sufficient for an online read."""
        return self.kind != "exact" or not self.needs_head

    # -- distance from the read ----------------------------------------------------------

    @property
    def lag_ms(self) -> int:
        """The end lies less than this before the read, or at ``as_of_ms - offset_ms``."""
        return self.offset_ms + self.end_step_ms

    @property
    def reach_ms(self) -> int | None:
        """The start lies less than this before the read; None without a start."""
        if self.length is None:
            return None
        length_ms = self.length.longest_ms if isinstance(self.length, CalendarUnit) else self.length
        rounded = self.hop_ms if self.kind == "hop" else 0
        return self.offset_ms + rounded + length_ms + self.start_step_ms

    @property
    def name(self) -> str | None:
        """As written in a definition; None for a lifetime."""
        return format_length(self.length)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form: all that distinguishes windows over the same tiles."""
        return {
            "window": self.name,
            "kind": self.kind,
            "hop": format_duration(self.hop_ms),
            "offset": format_duration(self.offset_ms) if self.offset_ms else None,
            "time_zone": self.time_zone,
        }


def parse_length(text: str | None) -> Length:
    """Parse the length of a window as written in a definition.

    >>> parse_length("90min"), parse_length("today"), parse_length(None)
    (5400000, <CalendarUnit.TODAY: 'today'>, None)

    Raises
    ------
    DefinitionError
        For anything but a duration, a calendar unit, or None.
    """
    if text is None:
        return None
    units = [unit.value for unit in CalendarUnit]
    if text in units:
        return CalendarUnit(text)
    try:
        return parse_duration(text)
    except DefinitionError as error:
        raise DefinitionError(
            f"window {text!r} is neither a calendar unit ({', '.join(units)}) nor a duration: "
            f"{error}"
        ) from None


def format_length(length: Length) -> str | None:
    """Return the text that ``parse_length`` reads as ``length``."""
    if length is None:
        return None
    return length.value if isinstance(length, CalendarUnit) else format_duration(length)


def hop_of(window_ms: int | None, tile_ms: int, resolution: Mapping[int, int] | None = None) -> int:
    """Return the hop of a window: the step to which its start is rounded down.

    By default one day from 12 days up, one hour from 12 hours up, else five minutes, and never
    finer than the tile. ``resolution`` maps shortest window lengths to hops (both ms) and
    replaces these defaults: the entry with the greatest length not above the window applies.

    >>> [hop_of(w, 300_000) // 60_000 for w in (3_600_000, 43_200_000, 12 * 86_400_000)]
    [5, 60, 1440]
    """
    steps = dict(resolution) if resolution else {12 * HOUR_MS: HOUR_MS, 12 * DAY_MS: DAY_MS}
    if window_ms is None:
        return max(tile_ms, max(steps.values(), default=tile_ms))
    fitting = [length for length in steps if length <= window_ms]
    base = tile_ms if resolution else 5 * MINUTE_MS
    return max(tile_ms, steps[max(fitting)] if fitting else base)
