"""Outcomes of predictions as loops that anyone can check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class OutcomeOf(NamedTuple):
    """The label of a prediction, and the time of the outcome that it is from; None: no outcome."""

    label: float | None
    time_ms: int | None


def outcome_of(
    entity: str,
    time_ms: int,
    outcomes: Sequence[tuple[str, int, float]],
    horizon_ms: int,
    take: str,
    otherwise: float | None,
) -> OutcomeOf:
    """The outcome of a prediction at ``time_ms``: of its entity in [time_ms, time_ms + horizon_ms).

    ``outcomes`` are (entity, time, value). ``take`` chooses among several: the ``first`` or
    ``last`` by time, of one time that of the smallest value; or their ``max``, ``min`` or ``sum``.
    """
    own = []
    for of, at, value in outcomes:
        if of == entity and time_ms <= at < time_ms + horizon_ms:
            own.append((at, value))
    if not own:
        return OutcomeOf(otherwise, None)
    own.sort()
    if take == "first":
        return OutcomeOf(own[0][1], own[0][0])
    if take == "last":
        return OutcomeOf(own[-1][1], own[-1][0])
    values = [value for _, value in own]
    label = {"max": max, "min": min, "sum": math.fsum}[take](values)  # type: ignore[operator]
    return OutcomeOf(label, own[0][0])


def counted_once(rows: Sequence[tuple[str, int]], horizon_ms: int) -> list[bool]:
    """Which of the rows (entity, time), in the order of time, count: those of an entity at least
    ``horizon_ms`` after the one before that counts, so that no outcome counts twice."""
    last: dict[str, int] = {}
    out = []
    for entity, time_ms in rows:
        counts = entity not in last or time_ms >= last[entity] + horizon_ms
        if counts:
            last[entity] = time_ms
        out.append(counts)
    return out
