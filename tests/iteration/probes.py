"""Functions that log their calls, and helpers that read the log.

Instances live inside an engine, perhaps in another process: what they saw travels as values of
the side output ``log``, in the order in which it happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from paimon_features.iteration import IterationListener


class Event(NamedTuple):
    """``kind`` is open, record, watermark, end (of the iteration), end_input."""

    kind: str
    subtask: int
    epoch: int | None = None
    value: Any = None
    instance: int = 0
    """How many events the function's instance saw before this one."""


class Probe(IterationListener):
    """Passes records on and logs them, as well as its callbacks."""

    def __init__(self) -> None:
        self.seen = 0

    def _log(self, kind: str, ctx: Any, out: Any, epoch: int | None, value: Any = None) -> None:
        out.side("log", Event(kind, ctx.subtask, epoch, value, self.seen))
        self.seen += 1

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self._log("record", ctx, out, ctx.epoch, value)
        out.collect(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        assert ctx.epoch == epoch
        self._log("watermark", ctx, out, epoch)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        self._log("end", ctx, out, ctx.epoch)

    def end_input(self, ctx: Any, out: Any) -> None:
        self._log("end_input", ctx, out, ctx.epoch)


class Hold(Probe):
    """A synchronous body: emits the records of an epoch at its watermark, the last at the end."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self._log("record", ctx, out, ctx.epoch, value)
        held = ctx.state.map("held")
        held.put(ctx.epoch, [*(held.get(ctx.epoch) or []), value])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        super().on_epoch_watermark_incremented(epoch, ctx, out)
        self._give(epoch, ctx, out)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        super().on_iteration_terminated(ctx, out)
        for epoch in sorted(ctx.state.map("held").keys()):
            self._give(epoch, ctx, out)

    def _give(self, epoch: int, ctx: Any, out: Any) -> None:
        held = ctx.state.map("held")
        for value in held.get(epoch) or []:
            out.collect(value)
        held.remove(epoch)


class Pulse(Probe):
    """Gives the epoch at its watermark, on one subtask, as long as it is below ``until``."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until = until

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self._log("record", ctx, out, ctx.epoch, value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        super().on_epoch_watermark_incremented(epoch, ctx, out)
        if ctx.subtask == 0 and epoch < self.until:
            out.collect(epoch)


def of_subtask(log: Iterable[Event], subtask: int) -> list[Event]:
    """What one subtask saw, in order."""
    return [event for event in log if event.subtask == subtask]


def epochs(log: Iterable[Event], kind: str, subtask: int | None = None) -> list[int | None]:
    """Epochs of the events of one kind, in order."""
    return [
        event.epoch
        for event in log
        if event.kind == kind and (subtask is None or event.subtask == subtask)
    ]


def values(log: Iterable[Event], epoch: int) -> list[Any]:
    """Values of the records of one epoch, sorted."""
    return sorted(event.value for event in log if event.kind == "record" and event.epoch == epoch)
