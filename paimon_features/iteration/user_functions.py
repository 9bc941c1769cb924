"""What a user writes: functions, listeners, and what they are handed.

A function is a plain callable, or an object with the method of its operation (``map``,
``flat_map``, ``filter``, ``reduce``, ``process_element``, for connected streams
``process_element1`` and ``process_element2``). An object may besides have ``open(ctx)``,
``end_input(ctx, out)``, ``close()``, ``on_timer(timestamp, ctx, out)``, and the two methods of
:class:`IterationListener`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paimon_features.iteration.named_state import NamedStates
    from paimon_features.iteration.timers import TimerService


class Context(Protocol):
    """What a function knows of where it runs; the same object from ``open`` to ``close``."""

    @property
    def epoch(self) -> int:
        """Epoch of the record being handled, in a callback the watermark's (``END`` at the end)."""
        ...

    @property
    def key(self) -> Any:
        """Key of the record being handled; ``None`` without ``key_by`` and in callbacks."""
        ...

    @property
    def state(self) -> NamedStates:
        """State by name; inside ``key_by`` value, list and map state are those of the key."""
        ...

    @property
    def subtask(self) -> int:
        """Number of this subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """Number of subtasks of this operator."""
        ...

    def timer_service(self) -> TimerService:
        """Event-time timers; they fire at the end of the instance's input."""
        ...


class Collector(Protocol):
    """Where a function puts what it emits; the record gets the epoch of the call."""

    def collect(self, value: Any) -> None:
        """Emit a value to the main output."""
        ...

    def side(self, tag: str, value: Any) -> None:
        """Emit a value to the side output that ``get_side_output(tag)`` reads."""
        ...


class IterationListener:
    """Mix-in of a function that wants to hear of epochs; both methods do nothing by default.

    Inside these calls there is no current key: keyed state raises ``JobError``.
    """

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Context, out: Collector) -> None:
        """Called once for each epoch, from 0, when no record of it or before can come any more."""

    def on_iteration_terminated(self, ctx: Context, out: Collector) -> None:
        """Called once, after the last record; what goes to a feedback stream is dropped."""


class ProcessFunction(Protocol):
    """The function of ``process``."""

    def process_element(self, value: Any, ctx: Context, out: Collector) -> None:
        """Handle one record."""
        ...


class CoProcessFunction(Protocol):
    """The function of ``connect(...).process``."""

    def process_element1(self, value: Any, ctx: Context, out: Collector) -> None:
        """Handle one record of the first stream."""
        ...

    def process_element2(self, value: Any, ctx: Context, out: Collector) -> None:
        """Handle one record of the second stream."""
        ...
