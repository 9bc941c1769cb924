"""Predictions and outcomes joined by entity and time, without a loop over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paimon_features.core.types.array_types import Bools, Floats, Ints
from paimon_features.project.outcomes.rule import Take


@dataclass(frozen=True)
class OutcomeValues:
    """Outcomes: codes of their entities, times (UTC ms) and values, one length, any order."""

    entities: Ints
    times: Ints
    values: Floats


@dataclass(frozen=True)
class OutcomeLabels:
    """The labels of predictions (NaN: none), and the time of the outcome (``found``: there is one).

    The time is that of the outcome taken, the first one's for a sum, a maximum or a minimum.
    """

    labels: Floats
    times: Ints
    found: Bools


def join_outcomes(
    entities: Ints,
    times: Ints,
    outcomes: OutcomeValues,
    horizon_ms: int,
    take: Take,
    otherwise: float | None,
) -> OutcomeLabels:
    """Return the label of each prediction, from outcomes of its entity in [time, time +
    horizon_ms).

    Of outcomes at one time the one with the smallest value is the first.

    >>> outcomes = OutcomeValues(np.array([7, 7]), np.array([20, 10]), np.array([1.0, 5.0]))
    >>> join_outcomes(
    ...     np.array([7, 7, 8]), np.array([10, 11, 10]), outcomes, 10, "first", 0.0
    ... ).labels.tolist()
    [5.0, 1.0, 0.0]
    """
    order = np.lexsort((outcomes.values, outcomes.times, outcomes.entities))
    ordered = OutcomeValues(outcomes.entities[order], outcomes.times[order], outcomes.values[order])
    start = _before(ordered, entities, times)
    stop = _before(ordered, entities, times + horizon_ms)
    has_outcome = stop > start
    labels = np.full(len(times), np.nan if otherwise is None else otherwise)
    at = np.where(has_outcome, stop - 1 if take == "last" else start, 0)
    outcome_times = np.zeros(len(times), np.int64)
    if has_outcome.any():
        outcome_times[has_outcome] = ordered.times[at[has_outcome]]
        labels[has_outcome] = _taken(ordered.values, start[has_outcome], stop[has_outcome], take)
    return OutcomeLabels(labels, outcome_times, has_outcome)


def _taken(values: Floats, start: Ints, stop: Ints, take: Take) -> Floats:
    """Return one number for each range of values, none of which is empty."""
    if take == "first":
        first: Floats = values[start]
        return first
    if take == "last":
        last: Floats = values[stop - 1]
        return last
    reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum}[take]
    # reduceat reads pairs of edges; the values between two ranges are of no use
    edges = np.ravel(np.column_stack([start, stop]))
    reduced: Floats = reduce.reduceat(np.append(values, 0.0), edges)[::2]
    return reduced


def _before(own: OutcomeValues, entities: Ints, times: Ints) -> Ints:
    """For each (entity, time) the number of outcomes before it, in the order of both."""
    is_query = np.concatenate([np.zeros(len(own.times), np.bool_), np.ones(len(times), np.bool_)])
    # at an equal time a query comes first: the outcome is not before it
    order = np.lexsort(
        (
            ~is_query,
            np.concatenate([own.times, times]),
            np.concatenate([own.entities, entities]),
        )
    )
    sorted_query = is_query[order]
    counts = np.cumsum(~sorted_query)
    out = np.empty(len(times), np.int64)
    out[order[sorted_query] - len(own.times)] = counts[sorted_query]
    return out


def counted_once(entities: Ints, times: Ints, horizon_ms: int) -> Bools:
    """Return which predictions count in a comparison, so that no outcome counts twice.

    Of an entity the first one does, and then each that is at least ``horizon_ms`` after the one
    before that counts. The rows are in the order of time.

    >>> counted_once(np.array([1, 1, 2, 1]), np.array([0, 5, 6, 10]), 10).tolist()
    [True, False, True, True]
    """
    last: dict[int, int] = {}
    out = np.zeros(len(times), np.bool_)
    for at, (entity, time_ms) in enumerate(zip(entities.tolist(), times.tolist(), strict=True)):
        if time_ms >= last.get(entity, time_ms):
            out[at] = True
            last[entity] = time_ms + horizon_ms
    return out
