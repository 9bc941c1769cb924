"""Predictions of two versions that differ, of which neither is better."""

from __future__ import annotations

import numpy as np

from paimon_features.array_types import Floats


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
