"""Waiting for a condition that nobody reports."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.1


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> bool:
    """Poll ``condition`` until it is true; False if it is not after ``timeout_s``.

    >>> wait_until(lambda: True, 1), wait_until(lambda: False, 0)
    (True, False)
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
