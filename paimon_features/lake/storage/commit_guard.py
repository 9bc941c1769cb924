"""Which snapshot a commit may create in an object store.

Paimon takes the number after the newest one, whichever that is when it commits. A process that was
paused meanwhile, and whose lock was taken over, would add its snapshot after those of the new
owner, and repeat what that has repeated. So a commit may only create the number after the newest
one of its beginning: if that exists, somebody else has committed, and it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_guards: ContextVar[Mapping[str, CommitGuard] | None] = ContextVar("commit_guards", default=None)


class CommitGuard:
    """``newest`` is the number of the newest snapshot when the commit began, 0 without one."""

    def __init__(self, newest: int) -> None:
        self.newest = newest

    def admits(self, number: int) -> bool:
        """Return True if the commit may create this snapshot."""
        return number == self.newest + 1

    def created(self, number: int) -> None:
        """Record that the commit created this snapshot: the next one in the block follows it."""
        self.newest = number


@contextmanager
def guarding(table_path: str, newest: int) -> Iterator[CommitGuard]:
    """Guard the commits of this thread to a table inside the ``with`` block."""
    guard = CommitGuard(newest)
    token = _guards.set({**(_guards.get() or {}), table_path: guard})
    try:
        yield guard
    finally:
        _guards.reset(token)


def guard_of(table_path: str) -> CommitGuard | None:
    """Return the guard of a table's commits in this thread."""
    return (_guards.get() or {}).get(table_path)
