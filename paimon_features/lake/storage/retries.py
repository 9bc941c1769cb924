"""Transient errors of a remote store, and the retry policy."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Arrow's error messages, with or without the server's error code
_CODE = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))?")
_PASSING = frozenset(
    {
        "INTERNAL_FAILURE",
        "NETWORK_CONNECTION",
        "REQUEST_EXPIRED",
        "REQUEST_TIMEOUT",
        "SERVICE_UNAVAILABLE",
        "SLOW_DOWN",
        "THROTTLING",
    }
)
PASSING_STATUS = frozenset({"408", "429", "500", "502", "503", "504"})


@dataclass(frozen=True, slots=True)
class Retries:
    """The retry policy of a read: ``attempts`` in total, with exponential backoff.

    The wait before attempt k is random between half and all of
    ``first_wait_s * 2**(k - 2)``, at most ``longest_wait_s``.
    """

    attempts: int = 6
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def call(
        self,
        work: Callable[[], T],
        on_retry: Callable[[], None] | None = None,
        passing: Callable[[BaseException], bool] | None = None,
    ) -> T:
        """Return the result of ``work``, retried on transient errors: Arrow's, or those of
        ``passing``."""
        passing = passing or is_passing
        for attempt in range(1, self.attempts + 1):
            try:
                return work()
            except Exception as error:
                if not passing(error):
                    raise
                if attempt == self.attempts:
                    error.add_note(f"tried {attempt} times")
                    raise
            if on_retry is not None:
                on_retry()
            wait_s = min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s)
            time.sleep(wait_s * (0.5 + random.random() / 2))
        raise AssertionError("unreachable: the last attempt returns or raises")


def is_passing(error: BaseException) -> bool:
    """Return True if the error or one of its causes is transient.

    >>> is_passing(OSError("AWS Error SLOW_DOWN during GetObject operation: please"))
    True
    >>> is_passing(OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation"))
    True
    >>> is_passing(OSError("AWS Error ACCESS_DENIED during GetObject operation"))
    False
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionError, TimeoutError)):
            return True
        code, status = error_code(cause)
        if code in _PASSING or status in PASSING_STATUS:
            return True
        cause = cause.__cause__
    return False


def error_code(error: BaseException) -> tuple[str | None, str | None]:
    """Return the error code of the store's response, or only its HTTP status.

    >>> error_code(OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: gone"))
    ('NO_SUCH_BUCKET', None)
    """
    match = _CODE.search(str(error))
    return (match[1], match[2]) if match else (None, None)
