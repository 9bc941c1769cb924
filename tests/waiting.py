"""Waiting for what another thread or process does."""

from __future__ import annotations

from collections.abc import Callable

from paimon_features.core.process.waiting import wait_until

LONG_S = 120.0
"""A loaded machine takes long; only failures wait for it."""


def await_true(condition: Callable[[], object], timeout_s: float = LONG_S) -> None:
    """Poll ``condition`` until it is true; AssertionError if it is not after ``timeout_s``."""
    assert wait_until(lambda: bool(condition()), timeout_s, 0.02), (
        f"not true after {timeout_s:.0f} s: line {condition.__code__.co_firstlineno} of "
        f"{condition.__code__.co_filename}"
    )
