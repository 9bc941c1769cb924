"""Timers of a function; all fire when the input of the instance has ended."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.core.errors import JobError
from paimon_features.iteration.named_state import MapState

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1


class TimerService:
    """Event-time timers in milliseconds. Event time does not advance inside an iteration (S26).

    At the end of the input it advances to the maximum: timers then fire in order of time, and in
    order of registration for equal times, with one call of ``on_timer`` per key and time.
    """

    def __init__(self, timers: MapState, key: Callable[[], Any]) -> None:
        self._timers = timers
        self._key = key
        self._now = MIN_WATERMARK
        self._due: list[tuple[int, int, Any]] | None = None
        self._pushed = 0

    def current_watermark(self) -> int:
        """Return -2^63 before the end of the input, and 2^63 - 1 at the end."""
        return self._now

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a call of ``on_timer(timestamp, ctx, out)`` with the current key."""
        timer = checked_integer("the time of a timer", timestamp, MIN_WATERMARK), self._key()
        if timer not in self._timers:
            self._timers.put(timer, True)
            if self._due is not None:
                self._push(timer)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key."""
        self._timers.remove((timestamp, self._key()))

    def register_processing_time_timer(self, timestamp: int) -> NoReturn:
        """Raise JobError: the result of an iteration does not depend on a clock."""
        raise JobError(
            "processing-time timers are not supported in an iteration; "
            "use an event-time timer, or on_epoch_watermark_incremented"
        )

    def fire(self, call: Callable[[int, Any], None]) -> None:
        """Call ``call(timestamp, key)`` for every timer, including those registered meanwhile."""
        self._now = MAX_WATERMARK
        self._due = []
        for timer in self._timers:
            self._push(timer)
        while self._due:
            timestamp, _, key = heapq.heappop(self._due)
            if (timestamp, key) in self._timers:
                self._timers.remove((timestamp, key))
                call(timestamp, key)
        self._due = None

    def _push(self, timer: tuple[int, Any]) -> None:
        assert self._due is not None
        self._pushed += 1
        # the number preserves the order of registration, and avoids comparing keys
        heapq.heappush(self._due, (timer[0], self._pushed, timer[1]))
