"""Functions for many bodies: termination criteria, and the output of the last round."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from paimon_features.core.configuration.arguments import checked_integer, shown
from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.epochs import END, NONE
from paimon_features.iteration.user_functions import Collector, Context, IterationListener


class TerminateOnMaxIter(IterationListener):
    """For ``flat_map``; see :func:`terminate_on_max_iter`."""

    def __init__(self, max_iter: int) -> None:
        self.max_iter = checked_integer("max_iter", max_iter)

    def flat_map(self, value: Any) -> tuple[()]:
        return ()

    def process_element(self, value: Any, ctx: Context, out: Collector) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Context, out: Collector) -> None:
        if epoch + 1 < self.max_iter:
            out.collect(epoch)


class TerminateOnMaxIterOrTol(IterationListener):
    """For ``flat_map``; see :func:`terminate_on_max_iter_or_tol`."""

    def __init__(self, max_iter: int, tol: float) -> None:
        self.max_iter = checked_integer("max_iter", max_iter)
        if isinstance(tol, bool) or not isinstance(tol, Real) or math.isnan(tol):
            raise DefinitionError(f"tol is {shown(tol)}; expected a number")
        self.tol: float = float(tol)

    def open(self, ctx: Context) -> None:
        self.loss = ctx.state.value("loss")

    def flat_map(self, value: float) -> tuple[()]:
        self.loss.update(value)
        return ()

    def process_element(self, value: float, ctx: Context, out: Collector) -> None:
        self.loss.update(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Context, out: Collector) -> None:
        loss = self.loss.value(math.inf)
        # a loss that is not a number has not converged
        if epoch + 1 < self.max_iter and not loss <= self.tol:
            out.collect(loss)


class ForwardInputsOfLastRound(IterationListener):
    """For ``flat_map``; see :func:`forward_inputs_of_last_round`."""

    def open(self, ctx: Context) -> None:
        self.ctx = ctx
        self.rounds = ctx.state.broadcast("rounds")
        self.closed = ctx.state.broadcast("closed")

    def flat_map(self, value: Any) -> tuple[()]:
        epoch = self.ctx.epoch
        self.rounds.put(epoch, [*self.rounds.get(epoch, ()), value])
        return ()

    def process_element(self, value: Any, ctx: Context, out: Collector) -> None:
        self.flat_map(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Context, out: Collector) -> None:
        for earlier in self.rounds:
            if earlier < epoch:
                self.rounds.remove(earlier)
        self.closed.put("epoch", epoch)

    def on_iteration_terminated(self, ctx: Context, out: Collector) -> None:
        # never a round after the last one: how far records run ahead depends on timing
        closed = self.closed.get("epoch", NONE)
        for epoch in (END, closed + 1, closed):
            if self.rounds.contains(epoch):
                for value in self.rounds.get(epoch):
                    out.collect(value)
                break
        self.rounds.clear()


def terminate_on_max_iter(max_iter: int) -> TerminateOnMaxIter:
    """Return a termination criterion: exactly ``max_iter`` epochs.

    ``criteria = stream.flat_map(terminate_on_max_iter(n))``, where ``stream`` has watermarks
    in every round: the callbacks are called for epochs 0 to n - 1. Its values are the epochs.
    """
    return TerminateOnMaxIter(max_iter)


def terminate_on_max_iter_or_tol(max_iter: int, tol: float) -> TerminateOnMaxIterOrTol:
    """Return a termination criterion: ``max_iter`` epochs, or fewer once the loss is <= ``tol``.

    ``criteria = losses.flat_map(terminate_on_max_iter_or_tol(n, tol))``: the iteration continues
    after epoch e if ``e + 1 < n`` and the latest loss is greater than ``tol``, or NaN; before the
    first loss, it is taken as infinite. Its values are the losses.
    """
    return TerminateOnMaxIterOrTol(max_iter, tol)


def forward_inputs_of_last_round() -> ForwardInputsOfLastRound:
    """Return a function that emits, at the end, the records of the last round only.

    ``outputs = models.flat_map(forward_inputs_of_last_round())``. The last round is the one that
    ended the iteration: its records arrive, but it has no watermark. If it has no records here,
    as with records that are emitted in watermark callbacks, it is the round before. Records that
    are emitted at the end of the iteration itself take precedence over both.
    """
    return ForwardInputsOfLastRound()
