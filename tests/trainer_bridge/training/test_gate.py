"""The comparison of two versions on the same rows, and what a gate makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paimon_features.testing.sizes import seeds
from tests.equal_versions import (
    RATES,
    ZIPFS,
    SimulatedRows,
    entity_effects,
    scaled_version,
    visits,
)
from tests.long_cases import quick_cases
from trainer_bridge.training.gate import (
    GateVerdict,
    RowLosses,
    compare,
    judge,
    losses,
    out_of_range,
)

SETTINGS = {"confidence": 0.95, "tolerance": 0.05, "segment_rows": 20}


def test_the_bounds_hold_as_often_as_they_say_also_where_rows_of_an_entity_are_alike() -> None:
    dice = np.random.default_rng(0)
    entities = np.repeat(np.arange(60), 8)
    false_alarms, naive = 0, 0
    rounds = 400
    for _ in range(rounds):
        # no difference in truth: what rows of an entity share, and noise
        difference = dice.normal(0, 1, 60)[entities] + dice.normal(0, 1, 480)
        found = compare(RowLosses(difference), RowLosses(np.zeros(480)), entities, 0.95)
        false_alarms += found.is_better
        naive += difference.mean() + 1.645 * difference.std() / np.sqrt(480) < 0
    assert 0.02 < false_alarms / rounds < 0.09
    assert naive / rounds > 0.15  # as if rows were independent


def test_losses_are_those_of_their_definition() -> None:
    three = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    assert losses("multiclass", np.array([1.0, 2.0]), three).values == pytest.approx(
        -np.log([0.5, 0.8])
    )
    assert losses("regression", np.array([3.0]), np.array([[1.0]])).values.tolist() == [4.0]
    assert losses("binary", np.array([1.0]), np.array([[0.0]])).values[0] == pytest.approx(
        34.5, abs=0.1
    )
    nothing = np.array([[np.nan]])
    assert losses("binary", np.array([0.0]), nothing).values[0] == pytest.approx(34.5, abs=0.1)
    assert losses("regression", np.array([0.0]), nothing).values[0] == 1e30


def test_a_candidate_that_is_worse_in_a_segment_is_refused() -> None:
    dice = np.random.default_rng(1)
    other = dice.gamma(2, 1, 300)
    country = ["DE"] * 250 + ["FR"] * 40 + ["UK"] * 10
    candidate = other - 0.5
    entities = np.arange(300)

    def judged(candidate: Any) -> GateVerdict:
        rows, others = RowLosses(candidate), RowLosses(other)
        return judge(rows, others, entities, {"country": country}, **SETTINGS)  # type: ignore[arg-type]

    assert judged(candidate).passed
    candidate[250:] = other[250:] + 1.0
    verdict = judged(candidate)
    assert verdict.overall.is_better
    assert set(verdict.segments) == {"country=DE", "country=FR"}  # UK has too few rows
    assert not verdict.passed
    assert "in the segment country=FR" in verdict.reasons[0]
    assert not judged(other).passed


def test_rows_of_a_single_entity_decide_nothing() -> None:
    found = compare(RowLosses(np.zeros(50)), RowLosses(np.ones(50)), np.zeros(50, np.int64), 0.95)
    assert (found.low, found.high, found.is_better, found.is_worse) == (None, None, False, False)
    assert "no bounds" in str(found)


def test_predictions_out_of_range_are_named() -> None:
    assert out_of_range("binary", np.array([[0.0], [1.0]])) is None
    assert "1 of 2 predictions are not in [0, 1]" in str(
        out_of_range("binary", np.array([[1.2], [0.5]]))
    )
    assert "do not add up to 1" in str(out_of_range("multiclass", np.array([[0.5, 0.2]])))
    assert out_of_range("regression", np.array([[7.0]]), (0.0, 6.0)) is not None
    assert out_of_range("regression", np.array([[7.0]])) is None
    assert "not finite" in str(out_of_range("regression", np.array([[np.inf]])))


def gate_of(rows: SimulatedRows) -> bool:
    """Whether the second version replaces the first."""
    candidate, other = (
        losses("binary", rows.labels, each[:, None]) for each in (rows.second, rows.first)
    )
    return judge(candidate, other, rows.entities, {}, **SETTINGS).passed  # type: ignore[arg-type]


def false_promotions(dice: np.random.Generator, gates: int, rate: float, zipf: float) -> float:
    """The share of gates of one rate of positives that promote what is not better."""
    passed = 0
    for _ in range(gates):
        rows = int(dice.choice([150, 500, 2_000]))
        entities = np.arange(rows)
        if dice.random() < 0.5:
            entities = visits(dice, rows, int(rows // dice.choice([3, 10])), zipf)
        factor, alike = dice.choice([0.1, 0.5, 0.9, 2.0]), dice.choice([0.0, 0.2, 0.5])
        found = scaled_version(dice, rate, float(factor), entities, float(alike))
        if dice.random() < 0.3:
            found = entity_effects(dice, rate, entities)
        passed += gate_of(found)
    return passed / gates


@pytest.mark.parametrize("rate", quick_cases(RATES, RATES[0], RATES[-1]))
def test_versions_that_are_not_better_pass_in_one_gate_of_twenty_at_most(rate: float) -> None:
    for seed in seeds(1):
        dice = np.random.default_rng(seed)
        for zipf in ZIPFS:
            # 100 gates at 5 %: 5 expected at most, standard deviation 2.2
            assert false_promotions(dice, 100, rate, zipf) <= 0.12, (seed, zipf)


def test_heavy_entities_without_positives_do_not_hide_that_these_come_in_groups() -> None:
    passed = 0
    for seed in range(10_000, 10_400):
        dice = np.random.default_rng([seed, 2_000])
        entities = visits(dice, 2_000, 200, 1.2)
        passed += gate_of(scaled_version(dice, 0.05, 0.9, entities, 0.3))
    assert passed <= 12  # by pairs of rows alone, 24 passed


def test_a_better_version_passes_though_labels_are_rare() -> None:
    dice, passed = np.random.default_rng(0), 0
    for _ in range(20):
        rows = scaled_version(dice, 0.01, 4.0, np.arange(5_000), 0.0)
        passed += gate_of(replace(rows, first=rows.second, second=rows.first))
    assert passed >= 18


def test_rare_values_of_a_regression_are_not_taken_for_none() -> None:
    dice, passed = np.random.default_rng(0), 0
    for _ in range(200):
        # one row in 300 has an amount; the candidate predicts a tenth of the mean
        labels = np.where(dice.random(300) < 1 / 300, 100.0, 0.0)
        candidate, other = (
            losses("regression", labels, np.full((300, 1), share / 3), span=(0.0, 100.0))
            for share in (0.1, 1.0)
        )
        passed += compare(candidate, other, np.arange(300), 0.95).is_better
    assert passed == 0


def test_weights_of_rows_count_in_the_difference() -> None:
    first, second = RowLosses(np.array([1.0, 3.0, 1.0])), RowLosses(np.zeros(3))
    found = compare(first, second, np.arange(3), 0.95, np.array([1.0, 2.0, 1.0]))
    assert found.mean == 2.0
