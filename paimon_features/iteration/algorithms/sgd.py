"""Stochastic gradient descent on the iteration runtime: one global batch per epoch.

::

    sums ──broadcast──► gradient (cached blocks) ──► sum over the subtasks ──► feedback
                           │ at the end                 └──► loss > tol and rounds left
                           └──► model
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig, terminate_on_max_iter_or_tol
from paimon_features.iteration.algorithms.bounded_training import (
    BlockKeeper,
    SubtaskCombiner,
    train_bounded,
)
from paimon_features.iteration.algorithms.estimator import MODEL, TrainingSource
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, width_of, window
from paimon_features.transformers.flink_ml.vectors import SparseRows, dot, weighted_sum

Loss = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""From dot products and labels to losses and their derivatives by the dot product."""

_CACHED_BYTES = 1 << 20
"""Size of the pieces that a block is processed in: read twice, they stay in the CPU cache."""


def logistic(product: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Return log(1 + exp(-margin)), margin = (2 label - 1) product; stable for any margin."""
    # in place: the cost is memory traffic
    away = labels * -2.0
    away += 1.0
    missed = product * away  # the negative margin
    odds = np.exp(np.minimum(missed, 700.0))
    whole = odds + 1.0
    losses = np.log(whole)
    np.maximum(losses, missed, out=losses)
    odds /= whole
    odds *= away
    return losses, odds


def hinge(product: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Return max(0, 1 - margin)."""
    sign = 2 * labels - 1
    short = 1 - product * sign
    return np.maximum(short, 0), np.where(short > 0, -sign, 0.0)


def least_square(product: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Return half of the squared difference."""
    away = product - labels
    return 0.5 * away * away, away


LOSSES: dict[str, Loss] = {"hinge": hinge, "least_square": least_square, "logistic": logistic}


@dataclass(frozen=True, slots=True)
class Descent:
    """Flink ML's parameters of stochastic gradient descent."""

    loss: Loss
    max_iter: int
    learning_rate: float
    global_batch_size: int
    tol: float
    reg: float
    elastic_net: float

    def batch_size(self, subtask: int, parallelism: int) -> int:
        """Return the number of rows of a global batch that a subtask processes."""
        rows, remainder = divmod(self.global_batch_size, parallelism)
        return rows + (subtask < remainder)

    def gradient(self, block: TrainingBlock, coefficient: Floats) -> Floats:
        """Return sums over the rows: the gradient, then weight and loss as the last two items."""
        out = np.zeros(len(coefficient) + 2)
        rows = max(_CACHED_BYTES // (8 * max(block.width, 1)), 64)
        if isinstance(block.features, SparseRows):
            rows = max(len(block), 1)
        for start in range(0, len(block), rows):
            piece = block.part(start, min(start + rows, len(block)))
            assert piece.labels is not None
            losses, slopes = self.loss(dot(piece.features, coefficient), piece.labels)
            if piece.weights is None:
                out[-2] += len(piece)
                out[-1] += losses.sum()
            else:
                out[-2] += piece.weights.sum()
                out[-1] += piece.weights @ losses
                slopes = slopes * piece.weights
            out[:-2] += weighted_sum(piece.features, slopes)
        return out

    def step(self, coefficient: Floats, sums: Floats) -> Floats:
        """Return the coefficients after applying the gradient of a global batch."""
        weight = sums[-2]
        if not weight > 0:
            return coefficient
        with np.errstate(over="ignore", invalid="ignore"):
            return self._regularized(coefficient - self.learning_rate / weight * sums[:-2])

    def _regularized(self, coefficient: Floats) -> Floats:
        if self.reg == 0:
            return coefficient
        rate = self.learning_rate
        if self.elastic_net == 0:
            return coefficient * (1 - rate * self.reg)
        lasso = self.elastic_net * self.reg * np.sign(coefficient)
        return coefficient - rate * (lasso + (1 - self.elastic_net) * self.reg * coefficient)


class _Gradient(BlockKeeper):
    """Keeps rows and coefficients; in each epoch sums the gradient over one local batch."""

    name = "gradient"

    def __init__(self, descent: Descent) -> None:
        self._descent = descent

    def process_element2(self, sums: Any, ctx: Any, out: Any) -> None:
        """Receive the initial coefficients (None: zeros), later the sums of the last epoch."""
        ctx.state.value("received").update(sums)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        coefficient = self._stepped(epoch, ctx)
        blocks = ctx.state.list("blocks").get()
        if coefficient is None:
            coefficient = np.zeros(width_of(blocks)) if blocks else None
        ctx.state.value("coefficient").update(coefficient)
        if not blocks:
            return
        if width_of(blocks) != len(coefficient):
            raise TransformError(
                f"the training data have {width_of(blocks)} features; the initial model has "
                f"{len(coefficient)}"
            )
        rows, position = sum(map(len, blocks)), ctx.state.value("position")
        start, size = position.value(0), self._descent.batch_size(ctx.subtask, ctx.parallelism)
        sums = np.zeros(len(coefficient) + 2)
        # the model reports overflows
        with np.errstate(over="ignore", invalid="ignore"):
            for block in window(blocks, start, size):
                sums += self._descent.gradient(block, coefficient)
        position.update(start + size if start + size < rows else 0)
        out.collect((ctx.subtask, sums))

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        # the last sums were delivered without a watermark after them
        if ctx.subtask == 0:
            out.side(MODEL, self._stepped(1, ctx))
        super().on_iteration_terminated(ctx, out)

    def _stepped(self, epoch: int, ctx: Any) -> Any:
        received = ctx.state.value("received").value()
        if epoch == 0:
            return received
        coefficient = ctx.state.value("coefficient").value()
        if coefficient is None:  # this subtask has no rows
            coefficient = np.zeros(len(received) - 2)
        return self._descent.step(coefficient, received)


class _SumGradients(SubtaskCombiner):
    """Adds the sums of all subtasks."""

    name = "sum"

    def combine(self, epoch: int, results: Sequence[Floats], ctx: Any, out: Any) -> None:
        total = results[0].copy()
        for sums in results[1:]:
            total += sums
        out.collect(total)


def mean_loss(sums: Floats) -> float:
    """Return the mean loss of a global batch; infinite if no row has a weight."""
    return float(sums[-1] / sums[-2]) if sums[-2] > 0 else math.inf


def descend(
    source: TrainingSource,
    start: Floats | None,
    descent: Descent,
    parallelism: int,
    config: IterationConfig,
) -> Callable[[Any], Any]:
    """Build the program that outputs the coefficients after the last iteration."""
    until = terminate_on_max_iter_or_tol(descent.max_iter, descent.tol)
    return train_bounded(
        source,
        start,
        _Gradient(descent),
        _SumGradients(),
        parallelism,
        config,
        criteria=lambda total, _: total.map(mean_loss).flat_map(until),
        model_from_subtasks=True,
    )
