"""How often ``models compare``, gates of ``retrain`` and intervals of ``train`` are wrong.

Comparisons: two versions that err by the entity, by errors of one distribution, so that neither is
better; and one that knows nothing against one that knows the chances: how many rows it takes to
find that. Gates: candidates that predict a multiple of the right rate. Intervals: how often they
contain the truth.

    python -m benchmarks.sequential_tests                  # 400 of each, some minutes
    python -m benchmarks.sequential_tests --repeats 100
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.types.array_types import Floats
from paimon_features.project.outcomes.compare import ends_of_looks
from paimon_features.project.outcomes.looks import Look, Stream, paired_looks, split_looks
from paimon_features.project.outcomes.losses import LOSSES, OutcomeLoss
from tests.equal_versions import (
    RATES,
    ZIPFS,
    SimulatedRows,
    entity_effects,
    scaled_version,
    visits,
)
from trainer_bridge.training import evaluation, gate

ALPHA = 0.05
ROWS, ENTITIES = 10_000, 2_000
SUSPICIOUS, CONFIRM = 0.03, 10


def looks_of(loss: OutcomeLoss, rows: SimulatedRows, share: float | None) -> list[Look]:
    """The looks at pairs, or at a split that gives a share of the entities to the second one."""
    if share is None:
        both = [Stream(rows.entities, rows.labels, each) for each in (rows.first, rows.second)]
        return paired_looks(loss, *both, ALPHA)
    dice = np.random.default_rng(len(rows.labels))
    is_second = (dice.random(int(rows.entities.max()) + 1) < share)[rows.entities]
    streams = [
        Stream(rows.entities[own], rows.labels[own], each[own])
        for own, each in ((~is_second, rows.first), (is_second, rows.second))
    ]
    times = np.arange(len(rows.labels))
    ends = ends_of_looks(times[~is_second], times[is_second])
    return split_looks(loss, *streams, ends, ALPHA)


def comparisons(repeats: int) -> None:
    print(f"{repeats} comparisons of {ROWS:,} rows of {ENTITIES:,} entities, alpha 5 %")
    print("  design, loss, visits: a winner of equal versions; rows until a worse one is found")
    for share in (None, 0.5, 0.1):
        for loss in LOSSES["binary"]:
            for zipf in ZIPFS:
                wrong, found = 0, []
                for seed in range(repeats):
                    dice = np.random.default_rng(seed)
                    entities = visits(dice, ROWS, ENTITIES, zipf)
                    rows = entity_effects(dice, 0.2, entities)
                    wrong += any(look.excludes(0.0) for look in looks_of(loss, rows, share))
                    blind = SimulatedRows(
                        rows.labels, np.full(ROWS, rows.labels.mean()), rows.second, entities
                    )
                    first = next(
                        (k.rows for k in looks_of(loss, blind, share) if k.low > 0), 10 * ROWS
                    )
                    found.append(first)
                print(
                    f"  {'pairs' if share is None else f'split {share}':10} {loss.name:9} "
                    f"zipf {zipf}: {wrong / repeats:.2%}; {np.median(found):,.0f}",
                    flush=True,
                )


@dataclass(frozen=True)
class GateCell:
    """Gates of one kind, whose candidate predicts ``factor`` times the right rate.

    ``zipf`` is the law of visits of ``rows / per_entity`` entities, None where each row is one;
    ``alike`` the intra-class correlation of labels.
    """

    rate: float
    rows: int
    zipf: float | None
    factor: float
    alike: float
    per_entity: int = 10

    def promotions(self, first_seed: int, repeats: int) -> int:
        """Return the number of gates that promote the candidate."""
        passed = 0
        for seed in range(first_seed, first_seed + repeats):
            dice = np.random.default_rng([seed, self.rows])
            entities = np.arange(self.rows)
            if self.zipf is not None:
                entities = visits(dice, self.rows, self.rows // self.per_entity, self.zipf)
            versions = scaled_version(dice, self.rate, self.factor, entities, self.alike)
            candidate, other = (
                gate.losses("binary", versions.labels, each[:, None])
                for each in (versions.second, versions.first)
            )
            passed += gate.compare(candidate, other, entities, 0.95).is_better
        return passed


def gate_cells(rate: float, rows: int) -> Iterator[GateCell]:
    """All kinds of gates with a rate of positives and a number of rows."""
    for factor in (0.1, 0.5, 0.9, 1.1, 2.0):
        yield GateCell(rate, rows, None, factor, 0.0)
        for zipf in ZIPFS:
            for alike in (0.0, 0.3, 0.5):
                yield GateCell(rate, rows, zipf, factor, alike)


def gates(repeats: int, rates: Sequence[float] = RATES) -> None:
    """Print the largest share of promotions: of each kind, those with many are repeated.

    The share is that of the repetition, whose gates are others: the largest of many estimates is
    too large.
    """
    print(f"{repeats} gates of each kind, {CONFIRM * repeats} more where {SUSPICIOUS:.0%} pass")
    for rate in rates:
        for rows in (150, 500, 2_000):
            found: list[tuple[float, int, GateCell]] = []
            for cell in gate_cells(rate, rows):
                passed, count = cell.promotions(0, repeats), repeats
                if passed >= SUSPICIOUS * repeats:
                    count = CONFIRM * repeats
                    passed = cell.promotions(repeats, count)
                found.append((passed / count, count, cell))
            share, count, cell = max(found, key=lambda each: each[0])
            low, high = share_interval(round(share * count), count)
            print(
                f"  {rate:.1%} positives, {rows:,} rows: {share:.2%} ({low:.2%} to {high:.2%}) "
                f"{cell}",
                flush=True,
            )


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """The interval of 95 % of a share: Wilson (1927)."""
    z = 1.96
    middle = (hits + z * z / 2) / (count + z * z)
    half = z * np.sqrt(hits * (count - hits) / count + z * z / 4) / (count + z * z)
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def intervals(repeats: int) -> None:
    print(f"{repeats} evaluations each: how often the interval of 95 % contains the truth")
    for count, rate, entities in (
        (150, 0.3, None), (200, 0.05, None), (2_000, 0.005, None), (1_000, 0.2, 50),
    ):  # fmt: skip
        dice = np.random.default_rng(0)
        labels, scores, _ = calibrated(dice, 200_000, rate, entities and 100_000)
        truth = {n: m.value for n, m in evaluation.evaluate("binary", labels, scores).items()}
        if entities is None:
            truth["calibration_error"] = 0.0
        hits: dict[str, list[bool]] = {name: [] for name in truth}
        for _ in range(repeats):
            labels, scores, of = calibrated(dice, count, rate, entities)
            rows = evaluation.EvaluatedRows(of.astype(np.int64))
            for name, metric in evaluation.evaluate("binary", labels, scores, 0, rows).items():
                low, high = metric.low or 0.0, metric.high if metric.high is not None else np.inf
                hits[name].append(low <= truth[name] <= high)
        text = ", ".join(f"{name} {np.mean(each):.1%}" for name, each in hits.items())
        print(f"  {count:,} rows of {entities or count:,} entities, {rate:.1%}: {text}", flush=True)


def calibrated(
    dice: np.random.Generator, count: int, rate: float, entities: int | None
) -> tuple[Floats, Floats, Floats]:
    """Labels, probabilities that are right over all entities, and the entity of each row."""
    of = np.arange(count) if entities is None else dice.integers(0, entities, count)
    shared = 0.0 if entities is None else dice.normal(0, 1, entities)[of]
    known = np.log(rate / (1 - rate)) + dice.normal(0, 1.5, count)
    labels = dice.random(count) < 1 / (1 + np.exp(-known - shared))
    return labels.astype(np.float64), 1 / (1 + np.exp(-known)), of.astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--part", choices=("comparisons", "gates", "intervals"))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="of gates")
    given = parser.parse_args()
    if given.part in (None, "comparisons"):
        comparisons(given.repeats)
    if given.part in (None, "gates"):
        gates(given.repeats, given.rates)
    if given.part in (None, "intervals"):
        intervals(given.repeats)


if __name__ == "__main__":
    main()
