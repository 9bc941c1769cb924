"""Which requests are taken on: those that can be answered soon. The others are told at once.

A request waits for the work that was taken on before it. How fast work gets done is measured, so
the wait is known before a request is taken on. Refusing costs little, so those that are taken on
are answered in time, whatever the load is.
"""

from __future__ import annotations

import math

from paimon_features.serving.http.http_errors import RequestRejected, overloaded

_BYTES_OF_WORK = 2_048
_MEMORY_S = 1.0
"""The speed is that of about the last second of work."""
_STALLED = 5.0
"""If nothing got done for so many times the accepted wait, nothing will soon."""


class Admission:
    """Bounds what is under way in one worker; used from its event loop only.

    Work is counted in parts of 2 KB of a request's body, at least one: a request about many
    entities counts as many small ones. All times are of one monotonic clock, in seconds.

    >>> admission = Admission(max_concurrent=1, max_wait_ms=100)
    >>> work = admission.enter(100, now_s=5.0)
    >>> admission.enter(100, now_s=5.0)
    Traceback (most recent call last):
    paimon_features.serving.http.http_errors.RequestRejected: 1 requests are under way in this
    worker, ...
    >>> admission.leave(work, now_s=5.001)
    >>> admission.in_flight
    0
    """

    def __init__(self, max_concurrent: int, max_wait_ms: int) -> None:
        self.in_flight = 0
        self._work = 0
        self._max_concurrent = max_concurrent
        self._max_wait_s = max_wait_ms / 1_000
        # work that got done and the time it took, both fading; pauses without work do not count
        self._done = 0.0
        self._busy_s = 0.0
        self._since_s = 0.0

    @property
    def wait_s(self) -> float:
        """How long a request that came now would wait, by what was measured."""
        return self._work * self._busy_s / self._done if self._done else 0.0

    def enter(self, body_bytes: int, now_s: float) -> int:
        """Take a request on; its work, to be given to ``leave``.

        Raises
        ------
        RequestRejected
            503 where too many are under way, or it would wait for too long.
        """
        if self.in_flight >= self._max_concurrent:
            raise _refusal(
                f"{self.in_flight} requests are under way in this worker, and no more may be "
                "([serve] max_concurrent)"
            )
        if not self.in_flight:
            # one is always taken on, so that a worker finds out when it has become faster
            self._since_s = now_s
        elif self.wait_s > self._max_wait_s:
            raise _refusal(
                f"the request would wait for {self.wait_s * 1_000:,.0f} ms, and at most "
                f"{self._max_wait_s * 1_000:,.0f} ms is accepted ([serve] max_wait)"
            )
        elif now_s - self._since_s > _STALLED * self._max_wait_s:
            raise _refusal(
                f"nothing was answered for {(now_s - self._since_s) * 1_000:,.0f} ms; the online "
                "store may be away"
            )
        work = 1 + body_bytes // _BYTES_OF_WORK
        self.in_flight += 1
        self._work += work
        return work

    def leave(self, work: int, now_s: float) -> None:
        """A request that was taken on has its answer."""
        took_s = now_s - self._since_s
        self._since_s = now_s
        kept = math.exp(-took_s / _MEMORY_S)
        self._busy_s = self._busy_s * kept + took_s
        self._done = self._done * kept + work
        self.in_flight -= 1
        self._work -= work


def _refusal(reason: str) -> RequestRejected:
    return overloaded(f"{reason}; try again after a second, or run more workers")
