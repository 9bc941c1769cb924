"""Difficulty of each sample, refined over rounds by a small model that is fitted in the loop.

In each round, every block of samples computes its losses with the current model; the difficulty of
a sample is a running mean of its losses,

    difficulty = loss                                        in the first round
    difficulty = (1 - pace) * difficulty + pace * loss       after it

and the model, a logistic regression, takes one step of Newton's method on the samples weighted by
``1 + emphasis * difficulty``: samples that stay hard have more weight. The model is the variable;
each subtask stores its samples and their difficulties. The losses of all rounds are an output, to
be written as feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from common import AtEnd, by_block

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.iteration import (
    DataStreamList,
    IterationBody,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter_or_tol,
)


class Samples(NamedTuple):
    """A block of samples: their numbers, features of shape (samples, features), labels 0 or 1."""

    block: int
    number: Ints
    x: Floats
    y: Floats


class Losses(NamedTuple):
    """Results of a round for a block: losses, and the difficulties after it."""

    round: int
    block: int
    number: Ints
    loss: Floats
    difficulty: Floats
    correct: npt.NDArray[np.bool_]


class Slope(NamedTuple):
    """First and second derivatives of the weighted loss, and the plain loss, of some samples."""

    gradient: Floats
    curvature: Floats
    loss: float
    samples: int

    def plus(self, other: Slope) -> Slope:
        """Return the sum of both."""
        return Slope(*(mine + its for mine, its in zip(self, other, strict=True)))


class Settings(NamedTuple):
    """``tol``: the model has converged when the largest component of its step is below it."""

    pace: float = 0.3
    emphasis: float = 1.0
    penalty: float = 1.0
    tol: float = 1e-4
    max_rounds: int = 20


DEFAULTS = Settings()


def losses_of(model: Floats, samples: Samples) -> tuple[Floats, Floats]:
    """Return cross entropies and predicted probabilities."""
    logits = samples.x @ model
    # log(1 + exp(z)) without overflow
    loss = np.logaddexp(0.0, logits) - samples.y * logits
    return loss, 1 / (1 + np.exp(-np.clip(logits, -500, 500)))


def slope_of(samples: Samples, probability: Floats, loss: Floats, weight: Floats) -> Slope:
    """Return the derivatives at the model with these probabilities."""
    gradient = samples.x.T @ (weight * (probability - samples.y))
    bend = weight * probability * (1 - probability)
    curvature = samples.x.T @ (bend[:, None] * samples.x)
    return Slope(gradient, curvature, float(loss.sum()), len(loss))


def step_of(model: Floats, slope: Slope, penalty: float) -> Floats:
    """Return Newton's step with a penalty on the squares of the coefficients."""
    curvature = slope.curvature + penalty * np.eye(len(model))
    step: Floats = -np.linalg.solve(curvature, slope.gradient + penalty * model)
    return step


class Weigh(IterationListener):
    """Losses, difficulties and derivatives of its blocks, once per round."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def process_element1(self, model: Floats, ctx: Any, out: Any) -> None:
        ctx.state.value("model").update(model)

    def process_element2(self, samples: Samples, ctx: Any, out: Any) -> None:
        ctx.state.map("samples").put(samples.block, samples)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        model, known = ctx.state.value("model").value(), ctx.state.map("difficulty")
        for block, samples in sorted(ctx.state.map("samples").items(), key=lambda item: item[0]):
            loss, probability = losses_of(model, samples)
            before, pace = known.get(block), self.settings.pace
            difficulty = loss if before is None else (1 - pace) * before + pace * loss
            known.put(block, difficulty)
            correct = (probability > 0.5) == (samples.y > 0.5)
            out.side("losses", Losses(epoch, block, samples.number, loss, difficulty, correct))
            weight = 1 + self.settings.emphasis * difficulty
            out.collect((block, slope_of(samples, probability, loss, weight)))


class NewtonStep(IterationListener):
    """Moves the model by the derivatives of all blocks; one subtask."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def process_element1(self, model: Floats, ctx: Any, out: Any) -> None:
        ctx.state.value("model").update(model)

    def process_element2(self, value: tuple[int, Slope], ctx: Any, out: Any) -> None:
        ctx.state.map("slopes").put(*value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        slopes = ctx.state.map("slopes")
        # in the order of the blocks: the same sum whoever came first
        first, *others = [slope for _, slope in sorted(slopes.items(), key=lambda item: item[0])]
        slopes.clear()
        for slope in others:
            first = first.plus(slope)
        model = ctx.state.value("model").value()
        step = step_of(model, first, self.penalty)
        out.side("progress", (first.loss / first.samples, float(np.abs(step).max())))
        out.collect(model + step)


class RefineDifficulty(IterationBody):
    """The loop: until the model has converged, at most ``max_rounds`` rounds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def process(self, variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        model, samples = variables.get(0), data.get(0)
        settings = self.settings
        weighed = (
            model.broadcast()
            .connect(samples.partition_custom(by_block, lambda each: each.block))
            .process(Weigh(settings))
            .name("weigh")
        )
        after = model.connect(weighed.rebalance()).process(NewtonStep(settings.penalty))
        after = after.set_parallelism(1).name("step")
        progress = after.get_side_output("progress")
        criteria = progress.map(lambda each: each[1]).flat_map(
            terminate_on_max_iter_or_tol(settings.max_rounds, settings.tol)
        )
        last = model.process(AtEnd()).name("model at the end")
        return IterationBodyResult(
            DataStreamList.of(after),
            DataStreamList.of(last, progress, weighed.get_side_output("losses")),
            criteria,
        )


def blocks_of(x: Floats, y: Floats, size: int) -> list[Samples]:
    """Split samples, numbered by row, into blocks of ``size``."""
    starts = range(0, len(y), size)
    return [
        Samples(
            block,
            np.arange(start, min(start + size, len(y))),
            x[start : start + size],
            y[start : start + size],
        )
        for block, start in enumerate(starts)
    ]


def build(
    x: Floats, y: Floats, settings: Settings = DEFAULTS, parallelism: int = 2, size: int = 256
) -> Any:
    """Return the program: its results are the model, (mean loss, step) per round, all losses."""

    def program(job: Any) -> Any:
        model = job.from_collection([np.zeros(x.shape[1])], parallelism=1, name="model")
        samples = job.from_collection(
            blocks_of(x, y, size), parallelism=parallelism, name="samples"
        )
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(model),
            ReplayableDataStreamList.not_replay(samples),
            IterationConfig(),
            RefineDifficulty(settings),
        )

    return program


def last_difficulty(losses: Sequence[Losses]) -> Floats:
    """Return the difficulty of each sample after the last round, by number."""
    newest = max(each.round for each in losses)
    made = [each for each in losses if each.round == newest]
    difficulty = np.empty(sum(len(each.number) for each in made))
    for each in made:
        difficulty[each.number] = each.difficulty
    return difficulty
