"""Loops over an object that has one position: a later loop ends an earlier one, with an error."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Generator
from typing import Generic, Self, TypeVar

from paimon_features.core.errors import RequestError

T = TypeVar("T")


class Loop(Generic[T]):
    """One loop; after :meth:`end` its next step is an error, where a generator would just end."""

    def __init__(self, batches: Generator[T, None, None]) -> None:
        self._batches = batches
        self._ended_by: str | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ended_by is not None:
            raise RequestError(self._ended_by)
        return next(self._batches)

    def close(self) -> None:
        """End the threads of the loop, which has no more steps then."""
        self._batches.close()

    def end(self, reason: str) -> None:
        """End it as :meth:`close` does; unless it was through, its next step raises the reason."""
        if inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED:
            self._ended_by = reason
        self._batches.close()


class Loops(Generic[T]):
    """The loop that runs over an object, if one does.

    It is referenced weakly, so that a loop that is left early ends its threads at once.

    >>> loops: Loops[int] = Loops("reader of table 'visits'")
    >>> first = loops.start(number for number in range(3))
    >>> next(first), list(loops.start(number for number in range(3)))
    (0, [0, 1, 2])
    >>> next(first)
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.RequestError: the reader of table 'visits' was used ...
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: weakref.ref[Loop[T]] | None = None

    def start(self, batches: Generator[T, None, None]) -> Loop[T]:
        """Start a loop over these batches; the one that runs has ended with an error."""
        self.end("used by another loop")
        loop = Loop(batches)
        self._running = weakref.ref(loop)
        return loop

    def end(self, how: str | None = None) -> None:
        """End the loop that runs: with an error that says how the object was moved, or silently.

        Silently, where the user asked for the end, as by ``close``.
        """
        running, self._running = self._running, None
        loop = None if running is None else running()
        if loop is None:
            return
        if how is None:
            loop.close()
            return
        loop.end(
            f"the {self._name} was {how} before this loop had come to its end, and has one "
            "position: leave the loop first, or give the other one a reader of its own "
            "(copy.copy(reader))"
        )
