"""The comparison of two versions on the same rows, and what a gate makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from trainer_bridge.training.gate import RowLosses, compare, judge, losses, out_of_range

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
    assert losses("multiclass", np.array([1.0, 2.0]), three).values == pytest.approx(-np.log([0.5, 0.8]))
    assert losses("regression", np.array([3.0]), np.array([[1.0]])).values.tolist() == [4.0]
    assert losses("binary", np.array([1.0]), np.array([[0.0]])).values[0] == pytest.approx(34.5, abs=0.1)
    nothing = np.array([[np.nan]])
    assert losses("binary", np.array([0.0]), nothing).values[0] == pytest.approx(34.5, abs=0.1)
    assert losses("regression", np.array([0.0]), nothing).values[0] == 1e30


def test_a_candidate_that_is_worse_in_a_segment_is_refused() -> None:
    dice = np.random.default_rng(1)
    other = dice.gamma(2, 1, 300)
    country = ["DE"] * 250 + ["FR"] * 40 + ["UK"] * 10
    candidate = other - 0.5
    entities = np.arange(300)
    assert judge(RowLosses(candidate), RowLosses(other), entities, {"country": country}, **SETTINGS).passed  # type: ignore[arg-type]
    candidate[250:] = other[250:] + 1.0
    verdict = judge(RowLosses(candidate), RowLosses(other), entities, {"country": country}, **SETTINGS)  # type: ignore[arg-type]
    assert verdict.overall.is_better
    assert set(verdict.segments) == {"country=DE", "country=FR"}  # UK has too few rows
    assert not verdict.passed
    assert "in the segment country=FR" in verdict.reasons[0]
    assert not judge(RowLosses(other), RowLosses(other), entities, {}, **SETTINGS).passed  # type: ignore[arg-type]


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
