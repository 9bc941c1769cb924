"""A circuit breaker per server: fail fast while it is down, probe for its recovery."""

from __future__ import annotations

import random
import threading
import time

FAILURES = 3
"""Consecutive failures that open the breaker; a timeout counts twice."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.5
"""With the duration of a probe below two seconds: the delay until a recovery is noticed."""


class BreakerOpen(Exception):  # noqa: N818 - becomes an OnlineStoreError with the address
    """The server failed recently; no request is sent to it now."""


class Breaker:
    """Admits or rejects calls to one server. Thread safe.

    Closed: all calls are admitted. Open: none, for a pause that grows from 0.1 to 0.5 s. Then
    half-open: one call is admitted as a probe; its success closes the breaker, its failure opens
    it again.

    >>> breaker = Breaker()
    >>> for _ in range(3): breaker.failed("no route to host")
    >>> breaker.admit()
    Traceback (most recent call last):
    ...
    paimon_features.online.store.redis_store.breaker.BreakerOpen: no route to host; retry in 0...
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._until: float | None = None
        self._reason = ""
        # read by every call, without the lock
        self.troubled = False

    def admit(self, probe_s: float = 1.0) -> bool:
        """Admit a call; return whether it is the probe, which may take up to ``probe_s``.

        False: the breaker is closed. Raises BreakerOpen while it is open.
        """
        if not self.troubled:
            return False
        with self._lock:
            if self._until is None:
                return False
            now = time.monotonic()
            if now < self._until:
                wait_s = self._until - now
                raise BreakerOpen(f"{self._reason}; retry in {wait_s:.1f} s")
            # other calls wait for the probe; if it never reports, the next one becomes the probe
            self._until = now + probe_s
            return True

    def failed(self, reason: str, *, timed_out: bool = False) -> None:
        """Record a call without a reply."""
        with self._lock:
            self.troubled = True
            self._failures += 2 if timed_out else 1
            self._reason = reason
            if self._failures >= FAILURES:
                self._until = time.monotonic() + self._pause_s * random.uniform(0.8, 1.0)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def succeeded(self) -> None:
        """Record a call with a reply of any kind."""
        if self.troubled:
            with self._lock:
                self.troubled = False
                self._failures, self._pause_s, self._until = 0, FIRST_PAUSE_S, None
