"""Functions shared by the bodies of the examples."""

from __future__ import annotations

from typing import Any

from paimon_features.iteration import IterationListener


def by_block(block: int, subtasks: int) -> int:
    """Return the subtask of a block."""
    return block % subtasks


class Total(IterationListener):
    """Emits the sum of the values of all subtasks at the end of each epoch."""

    def process_element(self, value: float, ctx: Any, out: Any) -> None:
        total = ctx.state.value("total")
        total.update((total.value() or 0.0) + value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        total = ctx.state.value("total")
        out.collect(total.value() or 0.0)
        total.clear()


class AtEnd(IterationListener):
    """Stores the records of the current epoch, and emits those of the last one."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.state.list("newest").add(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        ctx.state.list("newest").clear()

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        for value in ctx.state.list("newest").get():
            out.collect(value)
