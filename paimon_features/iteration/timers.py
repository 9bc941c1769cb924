"""Timers of a function: all fire when the instance's input has ended."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn

from paimon_features.errors import JobError
from paimon_features.iteration.named_state import MapState

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1


class TimerService:
    """Event-time timers, milliseconds. Event time does not move inside an iteration (S26).

    It jumps to the maximum at the end of the input: then timers fire in order of time, for
    each time in the order in which they were set, one call of ``on_timer`` per key and time.
    """

    def __init__(self, timers: MapState, key: Callable[[], Any]) -> None:
        self._timers = timers
        self._key = key
        self._now = MIN_WATERMARK
        self._due: list[tuple[int, int, Any]] | None = None
        self._pushed = 0

    def current_watermark(self) -> int:
        """-2^63 before the end of the input, 2^63 - 1 at it."""
        return self._now

    def register_event_time_timer(self, timestamp: int) -> None:
        """Ask for ``on_timer(timestamp, ctx, out)`` with the current key."""
        timer = timestamp, self._key()
        if timer not in self._timers:
            self._timers.put(timer, True)
            if self._due is not None:
                self._push(timer)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take the request back."""
        self._timers.remove((timestamp, self._key()))

    def register_processing_time_timer(self, timestamp: int) -> NoReturn:
        """Not supported: what an iteration computes does not depend on a clock."""
        raise JobError(
            "processing-time timers are not supported in an iteration; "
            "use an event-time timer, or on_epoch_watermark_incremented"
        )

    def fire(self, call: Callable[[int, Any], None]) -> None:
        """Call ``call(timestamp, key)`` for every timer, those set meanwhile included."""
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
        # the number keeps the order of setting, and keys from being compared
        heapq.heappush(self._due, (timer[0], self._pushed, timer[1]))
