"""Not asking a server that does not answer, except now and then to see whether it is back."""

from __future__ import annotations

import random
import threading
import time

FAILURES = 3
"""So many failures in a row open the breaker; one that took the whole timeout counts twice."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.5
"""Together with the time of a probe below two seconds: so soon is a server found that is back."""


class BreakerOpen(Exception):  # noqa: N818 - it becomes an OnlineStoreError with the address
    """The server failed lately and is not asked now."""


class Breaker:
    """Lets calls to one server through, or not. Safe to use from several threads.

    Closed: all calls. Open: none, for a pause that grows from 0.1 to 0.5 s. Then half-open: one
    call goes through as a probe; its success closes the breaker, its failure opens it again.

    >>> breaker = Breaker()
    >>> for _ in range(3): breaker.failed("no route to host")
    >>> breaker.admit()
    Traceback (most recent call last):
    ...
    paimon_features.online.redis_store.breaker.BreakerOpen: no route to host; tried again in 0...
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._until: float | None = None
        self._reason = ""
        # read without the lock in each call
        self.troubled = False

    def admit(self, probe_s: float = 1.0) -> bool:
        """Whether this call is the probe, which takes up to ``probe_s``; BreakerOpen if none may.

        False: the breaker is closed.
        """
        if not self.troubled:
            return False
        with self._lock:
            if self._until is None:
                return False
            now = time.monotonic()
            if now < self._until:
                wait_s = self._until - now
                raise BreakerOpen(f"{self._reason}; tried again in {wait_s:.1f} s")
            # others wait for this one; should it never tell how it ended, the next one goes
            self._until = now + probe_s
            return True

    def failed(self, reason: str, *, timed_out: bool = False) -> None:
        """A call got no answer."""
        with self._lock:
            self.troubled = True
            self._failures += 2 if timed_out else 1
            self._reason = reason
            if self._failures >= FAILURES:
                self._until = time.monotonic() + self._pause_s * random.uniform(0.8, 1.0)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def succeeded(self) -> None:
        """A call got an answer, of whatever kind."""
        if self.troubled:
            with self._lock:
                self.troubled = False
                self._failures, self._pause_s, self._until = 0, FIRST_PAUSE_S, None
