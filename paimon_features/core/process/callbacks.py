"""Types of the callbacks by which long work reports to its caller."""

from __future__ import annotations

from collections.abc import Callable

OnMessage = Callable[[str], None]
"""Receives one line of text for each decision or stage."""

OnProgress = Callable[[int, int], None]
"""Receives the units done so far and their total."""


OnPhase = Callable[[str, int, int], None]
"""Receives what is being done, the units of it done so far and their total (0: unknown)."""


def ignore_message(message: str) -> None:
    """Ignore a message: an ``OnMessage`` for callers that show none."""


def ignore_progress(done: int, total: int) -> None:
    """Ignore progress: an ``OnProgress`` for callers that show none."""


def ignore_phase(phase: str, done: int, total: int) -> None:
    """Ignore the progress of a phase: an ``OnPhase`` for callers that show none."""
