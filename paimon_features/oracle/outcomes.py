"""Outcomes and confidence sequences as loops that anyone can check."""

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


def bounded_mean_interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """The empirical Bernstein interval after all values, which are in [0, 1].

    Waudby-Smith and Ramdas (2024), theorem 2 with the bets of their equation 15.
    """
    mean, variance = 0.5, 0.25
    total = squares = 0.0
    bets = weighted = risk = 0.0
    for number, value in enumerate(values, 1):
        bet = min(
            math.sqrt(2 * math.log(2 / alpha) / (variance * number * math.log(1 + number))), 0.5
        )
        bets += bet
        weighted += bet * value
        risk += 4 * (value - mean) ** 2 * (-math.log(1 - bet) - bet) / 4
        total += value
        mean = (0.5 + total) / (number + 1)
        squares += (value - mean) ** 2
        variance = (0.25 + squares) / (number + 1)
    centre, half = weighted / bets, (math.log(2 / alpha) + risk) / bets
    return max(centre - half, 0.0), min(centre + half, 1.0)


def any_mean_interval(values: Sequence[float], alpha: float, tuned_for: int) -> tuple[float, float]:
    """The asymptotic interval after all values; Waudby-Smith et al. (2024), theorem 2.2."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / count
    rho = math.sqrt((-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / tuned_for)
    grown = count * rho**2 + 1
    half = math.sqrt(variance) * math.sqrt(
        2 * grown / (count**2 * rho**2) * math.log(math.sqrt(grown) / alpha)
    )
    return mean - half, mean + half


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


def block_differences(
    rows: Sequence[tuple[bool, float]],
) -> list[tuple[float, int]]:
    """Differences of mean losses in blocks, and how many rows there were at the end of each.

    ``rows`` are (is of the second version, loss), in the order of time. A block ends with the first
    row after which it has rows of both.
    """
    out = []
    first: list[float] = []
    second: list[float] = []
    for count, (is_second, loss) in enumerate(rows, 1):
        (second if is_second else first).append(loss)
        if first and second:
            out.append((math.fsum(first) / len(first) - math.fsum(second) / len(second), count))
            first, second = [], []
    return out
