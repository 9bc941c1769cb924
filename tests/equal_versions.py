"""Predictions of two versions of which neither is better, or the second one is: for simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paimon_features.core.types.array_types import Floats, Ints

RATES = (0.001, 0.003, 0.01, 0.05, 0.2)
ZIPFS = (0.0, 0.8, 1.0, 1.2)
"""Laws of visits: all entities alike, up to one that has a quarter of the rows."""


@dataclass(frozen=True)
class SimulatedRows:
    """Rows with labels 0 and 1, the probabilities by two versions, and the entity of each row."""

    labels: Floats
    first: Floats
    second: Floats
    entities: Ints


def equal_versions(
    dice: np.random.Generator, rows: int, noise: float = 0.1
) -> tuple[Floats, Floats, Floats]:
    """Labels (0 and 1), and the probabilities by two versions: each with its own errors.

    The errors of both have one distribution, so that the expected losses are equal.
    """
    chances = dice.beta(1.0, 4.0, rows)
    labels = (dice.random(rows) < chances).astype(np.float64)
    first, second = (
        np.clip(chances + dice.normal(0.0, noise, rows), 0.001, 0.999) for _ in range(2)
    )
    return labels, first, second


def visits(dice: np.random.Generator, rows: int, entities: int, zipf: float) -> Ints:
    """The entity of each row: the n-th has a share of 1/n^zipf of them; 0: all alike."""
    weights = 1 / np.arange(1, entities + 1) ** zipf
    found: Ints = dice.choice(entities, rows, p=weights / weights.sum())
    return found


def scaled_version(
    dice: np.random.Generator, rate: float, factor: float, entities: Ints, alike: float
) -> SimulatedRows:
    """The first version predicts the rate of positives, the second one ``factor`` times it.

    So the second one is worse, unless the factor is 1. ``alike`` is how much of the variance of
    labels is between entities, from 0 (rows are independent) to below 1.
    """
    count = int(entities.max()) + 1
    chances = np.full(count, rate)
    if alike > 0:
        worth = 1 / alike - 1  # of a beta distribution with this intra-class correlation
        chances = dice.beta(rate * worth, (1 - rate) * worth, count)
    labels = (dice.random(len(entities)) < chances[entities]).astype(np.float64)
    first = np.full(len(entities), rate)
    return SimulatedRows(labels, first, np.clip(factor * first, 0.0, 0.999), entities)


def entity_effects(
    dice: np.random.Generator, rate: float, entities: Ints, noise: float = 0.5
) -> SimulatedRows:
    """Both versions err by the entity, by errors of one distribution: neither is better."""
    count = int(entities.max()) + 1
    logits = dice.normal(size=count) + np.log(rate / (1 - rate))
    labels = (dice.random(len(entities)) < _sigmoid(logits)[entities]).astype(np.float64)
    first, second = (_sigmoid(logits + noise * dice.normal(size=count))[entities] for _ in range(2))
    return SimulatedRows(labels, first, second, entities)


def _sigmoid(logits: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-logits))
    return found
