"""Interfaces of user functions: functions, listeners, context and collector.

A function is a plain callable, or an object with the method of its operation (``map``,
``flat_map``, ``filter``, ``reduce``, ``process_element``, for connected streams
``process_element1`` and ``process_element2``). An object may also have ``open(ctx)``,
``end_input(ctx, out)``, ``close()``, ``on_timer(timestamp, ctx, out)``, and the two methods of
:class:`IterationListener`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paimon_features.iteration.named_state import NamedStates
    from paimon_features.iteration.timers import TimerService


class Context(Protocol):
    """Runtime context of a function instance; the same object from ``open`` to ``close``."""

    @property
    def epoch(self) -> int:
        """Epoch of the current record, or of the watermark in a callback (``END`` at the end)."""
        ...

    @property
    def key(self) -> Any:
        """Key of the current record; ``None`` without ``key_by`` and in callbacks."""
        ...

    @property
    def state(self) -> NamedStates:
        """State by name; after ``key_by``, value, list and map state belong to the current key."""
        ...

    @property
    def subtask(self) -> int:
        """Index of this subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """Number of subtasks of this operator."""
        ...

    def timer_service(self) -> TimerService:
        """Return the event-time timers; they fire at the end of the instance's input."""
        ...


class Collector(Protocol):
    """Collects the output of a function; a record gets the epoch of the call."""

    def collect(self, value: Any) -> None:
        """Emit a value to the main output."""
        ...

    def side(self, tag: str, value: Any) -> None:
        """Emit a value to the side output that ``get_side_output(tag)`` reads."""
        ...


class IterationListener:
    """Mix-in for functions that are notified about epochs; both methods do nothing by default.

    Inside these callbacks there is no current key: access to keyed state raises ``JobError``.
    """

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Context, out: Collector) -> None:
        """Handle the end of an epoch, from 0: no more records of it or earlier can arrive."""

    def on_iteration_terminated(self, ctx: Context, out: Collector) -> None:
        """Handle the end of the iteration, after the last record; feedback is dropped then."""


class ProcessFunction(Protocol):
    """The function of ``process``."""

    def process_element(self, value: Any, ctx: Context, out: Collector) -> None:
        """Process one record."""
        ...


class CoProcessFunction(Protocol):
    """The function of ``connect(...).process``."""

    def process_element1(self, value: Any, ctx: Context, out: Collector) -> None:
        """Process one record of the first stream."""
        ...

    def process_element2(self, value: Any, ctx: Context, out: Collector) -> None:
        """Process one record of the second stream."""
        ...
