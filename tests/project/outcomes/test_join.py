"""The join of outcomes against its reference, a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from paimon_features.project.outcomes.join import OutcomeValues, counted_once, join_outcomes
from paimon_features.project.outcomes.rule import TAKES
from tests.reference import outcomes as oracle


@pytest.mark.parametrize("seed", range(12))
def test_labels_are_those_of_the_reference(seed: int) -> None:
    dice = np.random.default_rng(seed)
    # few entities and times: equal times, edges of windows, several outcomes in one
    people, moments = int(dice.integers(1, 5)), int(dice.integers(1, 30))
    queries, count = int(dice.integers(0, 40)), int(dice.integers(0, 60))
    entities, times = dice.integers(0, people, queries), dice.integers(0, moments, queries)
    found = OutcomeValues(
        dice.integers(0, people + 1, count),
        dice.integers(-5, moments + 5, count),
        np.round(dice.normal(0, 3, count), 1),
    )
    listed = [
        (str(e), t, v)
        for e, t, v in zip(
            found.entities.tolist(), found.times.tolist(), found.values.tolist(), strict=True
        )
    ]
    horizon = int(dice.integers(1, 12))
    for take in TAKES:
        for otherwise in (0.0, None):
            got = join_outcomes(entities, times, found, horizon, take, otherwise)
            for at in range(queries):
                expected = oracle.outcome_of(
                    str(entities[at]), int(times[at]), listed, horizon, take, otherwise
                )
                own = None if np.isnan(got.labels[at]) else float(got.labels[at])
                assert own == (
                    expected.label if expected.label is None else pytest.approx(expected.label)
                )
                assert bool(got.found[at]) == (expected.time_ms is not None)
                if expected.time_ms is not None:
                    assert got.times[at] == expected.time_ms


@pytest.mark.parametrize("seed", range(5))
def test_no_outcome_counts_twice(seed: int) -> None:
    dice = np.random.default_rng(seed)
    times = np.sort(dice.integers(0, 100, 200))
    entities = dice.integers(0, 7, 200)
    rows = [(str(e), int(t)) for e, t in zip(entities, times, strict=True)]
    horizon = int(dice.integers(1, 40))
    got = counted_once(entities, times, horizon)
    assert got.tolist() == oracle.counted_once(rows, horizon)
    for entity in range(7):
        own = times[(entities == entity) & got]
        assert (np.diff(own) >= horizon).all()
