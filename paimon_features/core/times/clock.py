"""The clock: UTC milliseconds since 1970, and the type of its replacements in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the current time in UTC milliseconds."""


def now_ms() -> int:
    """Return the current time in UTC milliseconds since 1970."""
    return time.time_ns() // 1_000_000
