"""How often ``models compare`` names a winner of equal versions, looked at after each row.

Two versions predict with errors of their own, of one distribution, so that neither is better. Then
against one whose errors are 2.5 times as large: how many rows it takes to find that.

    python -m benchmarks.sequential_tests                  # 2,000 comparisons, about a minute
    python -m benchmarks.sequential_tests --comparisons 200
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from paimon_features.outcomes.sequences import LEAST, ConfidenceSequence

from paimon_features.array_types import Floats
from paimon_features.outcomes.compare import block_differences
from paimon_features.outcomes.losses import LOSSES, OutcomeLoss
from paimon_features.testing.equal_versions import equal_versions

ALPHA = 0.05
Z = 1.959963984540054


def ordinary(differences: Floats) -> ConfidenceSequence:
    """The interval of 95 % of a mean, computed again after each row."""
    count = np.arange(1, len(differences) + 1)
    mean = np.cumsum(differences) / count
    variance = np.maximum(np.cumsum(differences**2) / count - mean**2, 0)
    half = np.where(count < LEAST, np.inf, Z * np.sqrt(variance / count))
    return ConfidenceSequence(mean - half, mean + half)


def split(loss: OutcomeLoss, first: Floats, second: Floats, share: float) -> ConfidenceSequence:
    """The comparison of two streams: a share of the rows is of the second version."""
    is_second = np.random.default_rng(len(first)).random(len(first)) < share
    times = np.arange(len(first))
    differences, rows = block_differences(
        first[~is_second], second[is_second], times[~is_second], times[is_second]
    )
    found = loss.mean_difference(differences, ALPHA)
    # after each row, the interval of the newest block
    low, high = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    newest = np.searchsorted(rows, times + 1, side="right") - 1
    low[newest >= 0] = found.low[newest[newest >= 0]]
    high[newest >= 0] = found.high[newest[newest >= 0]]
    return ConfidenceSequence(low, high)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=10_000)
    given = parser.parse_args()
    brier, log_loss = LOSSES["binary"]
    ways: dict[str, Callable[[Floats, Floats, Floats], ConfidenceSequence]] = {
        "brier, pairs": lambda y, a, b: brier.mean_difference(
            brier.of(y, a) - brier.of(y, b), ALPHA
        ),
        "brier, split by half": lambda y, a, b: split(brier, brier.of(y, a), brier.of(y, b), 0.5),
        "brier, split, a tenth": lambda y, a, b: split(brier, brier.of(y, a), brier.of(y, b), 0.1),
        "log_loss, pairs": lambda y, a, b: log_loss.mean_difference(
            log_loss.of(y, a) - log_loss.of(y, b), ALPHA
        ),
        "log_loss, split by half": lambda y, a, b: split(
            log_loss, log_loss.of(y, a), log_loss.of(y, b), 0.5
        ),
        "ordinary interval, brier, pairs": lambda y, a, b: ordinary(
            brier.of(y, a) - brier.of(y, b)
        ),
    }
    wrong = dict.fromkeys(ways, 0)
    found: dict[str, list[int | None]] = {name: [] for name in ways}
    widths: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(given.comparisons):
        dice = np.random.default_rng(seed)
        labels, first, second = equal_versions(dice, given.rows)
        # the same labels, and a version whose errors are 2.5 times as large
        worse = equal_versions(np.random.default_rng(seed), given.rows, 0.25)[1]
        for name, way in ways.items():
            sequence = way(labels, first, second)
            wrong[name] += sequence.first_without(0.0) is not None
            widths[name].append(float(sequence.high[-1] - sequence.low[-1]))
            found[name].append(way(labels, worse, second).first_without(0.0))
    print(
        f"{given.comparisons:,} comparisons of {given.rows:,} rows, looked at after each; alpha 5 %"
    )
    for name in ways:
        rows = sorted(given.rows + 1 if each is None else each for each in found[name])
        missed = sum(each is None for each in found[name])
        share = wrong[name] / given.comparisons
        print(
            f"  {name:32} equal: a winner in {share:.2%}, width {np.mean(widths[name]):.4f}; "
            f"worse: found after {rows[len(rows) // 2]:,} rows (median), {missed:,} not found"
        )


if __name__ == "__main__":
    main()
