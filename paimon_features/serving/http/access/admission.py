"""Admission control: accept only requests that can be answered soon; reject the others at once.

A request waits for the work accepted before it. The speed of work is measured, so the wait is
known before a request is accepted. Rejecting is cheap, so accepted requests are answered in time
under any load.
"""

from __future__ import annotations

import math

from paimon_features.serving.http.http_errors import RequestRejected, overloaded

_BYTES_OF_WORK = 2_048
_MEMORY_S = 1.0
"""The speed is that of about the last second of work."""
_TOGETHER_S = 0.1
"""Answers of one read of the store are counted together for at most this long."""
_STALLED = 5.0
"""If nothing was finished for this many times the accepted wait, nothing will be soon."""


class Admission:
    """Bounds the work in flight in one worker; used from its event loop only.

    Work is counted in units of 2 KB of a request's body, at least one: a request for many
    entities counts as many small ones. All times are of one monotonic clock, in seconds.

    >>> admission = Admission(max_concurrent=1, max_wait_ms=100)
    >>> work = admission.enter(100, now_s=5.0)
    >>> admission.enter(100, now_s=5.0)
    Traceback (most recent call last):
    paimon_features.serving.http.http_errors.RequestRejected: 1 requests are in flight in this
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
        # finished work and the time it took, both decaying; pauses without work do not count
        self._done = 0.0
        self._busy_s = 0.0
        self._since_s = 0.0
        # of the answers that come together now: their work, the time until the first and the last
        self._batch_work = 0
        self._batch_first_s = 0.0
        self._batch_s = 0.0

    @property
    def wait_s(self) -> float:
        """The expected wait of a request that arrives now."""
        return self._work * self._busy_s / self._done if self._done else 0.0

    def enter(self, body_bytes: int, now_s: float) -> int:
        """Accept a request; returns its work, to be passed to ``leave``.

        Raises
        ------
        RequestRejected
            503 if too many are in flight, or it would wait for too long.
        """
        if self.in_flight >= self._max_concurrent:
            raise _rejection(
                f"{self.in_flight} requests are in flight in this worker, the most it accepts "
                "([serve] max_concurrent)"
            )
        if not self.in_flight:
            # one is always accepted, so that a worker notices when it has become faster
            self._since_s = now_s
        elif self.wait_s > self._max_wait_s:
            raise _rejection(
                f"the request would wait for {self.wait_s * 1_000:,.0f} ms, and at most "
                f"{self._max_wait_s * 1_000:,.0f} ms is accepted ([serve] max_wait)"
            )
        elif now_s - self._since_s > _STALLED * self._max_wait_s:
            raise _rejection(
                f"nothing was answered for {(now_s - self._since_s) * 1_000:,.0f} ms; the online "
                "store may be unavailable"
            )
        work = 1 + body_bytes // _BYTES_OF_WORK
        self.in_flight += 1
        self._work += work
        return work

    def leave(self, work: int, now_s: float) -> None:
        """Record that an accepted request was answered.

        Answers of one read of the store come together: the first takes as long as all of them, so
        alone it says nothing of the speed. They count once they are complete: with an answer that
        takes half as long as the first or more, it is the next read's.
        """
        took_s = now_s - self._since_s
        self._since_s = now_s
        first_s, batch_s = self._batch_first_s, self._batch_s
        if took_s >= first_s / 2 or batch_s - first_s >= min(first_s, _TOGETHER_S):
            kept = math.exp(-batch_s / _MEMORY_S)
            self._busy_s = self._busy_s * kept + batch_s
            self._done = self._done * kept + self._batch_work
            self._batch_work, self._batch_first_s, self._batch_s = work, took_s, took_s
        else:
            self._batch_work += work
            self._batch_s += took_s
        self.in_flight -= 1
        self._work -= work


def _rejection(reason: str) -> RequestRejected:
    return overloaded(f"{reason}; retry after a second, or run more workers", "admission")
