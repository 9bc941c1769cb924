"""Types of the callbacks by which long work reports to its caller."""

from __future__ import annotations

from collections.abc import Callable

OnMessage = Callable[[str], None]
"""Receives one line of text for each decision or stage."""

OnProgress = Callable[[int, int], None]
"""Receives the units done so far and their total."""


def ignore_message(message: str) -> None:
    """An ``OnMessage`` that does nothing."""


def ignore_progress(done: int, total: int) -> None:
    """An ``OnProgress`` that does nothing."""
