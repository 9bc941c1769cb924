"""Fitted transformers as loops over Python values: sums in fractions, one row after the other.

What is computed here is right by being plain: means and deviations are exact until their last
step, categories are looked for in a list. Missing is None (NaN is made None on the way in).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

Values = Sequence[Any]


def known(values: Values) -> list[Any]:
    """The values that are there."""
    return [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]


def mean(values: Values) -> Fraction | None:
    """The exact mean of what is there."""
    there = [Fraction(v) for v in known(values)]
    return sum(there, Fraction(0)) / len(there) if there else None


def variance(values: Values) -> Fraction | None:
    """The exact variance (ddof 0) of what is there."""
    centre = mean(values)
    if centre is None:
        return None
    there = [(Fraction(v) - centre) ** 2 for v in known(values)]
    return sum(there, Fraction(0)) / len(there)


def standardized(values: Values, seen: Values) -> list[float | None]:
    """Values as a ``StandardScaler`` fitted on ``seen`` makes them."""
    centre, spread = mean(seen), variance(seen)
    out: list[float | None] = []
    for value in values:
        if value is None:
            out.append(None)
        elif centre is None or spread is None:
            out.append(math.nan)
        else:
            out.append(float(Fraction(value) - centre) / (math.sqrt(spread) or 1.0))
    return out


def stretched(values: Values, seen: Values, low: float, high: float) -> list[float | None]:
    """Values as a ``MinMaxScaler`` to (low, high) fitted on ``seen`` makes them."""
    there = known(seen)
    out: list[float | None] = []
    for value in values:
        if value is None:
            out.append(None)
        elif not there:
            out.append(math.nan)
        else:
            reach = Fraction(max(there)) - Fraction(min(there))
            share = (Fraction(value) - Fraction(min(there))) / (reach or 1)
            out.append(float(share * Fraction(high - low) + Fraction(low)))
    return out


def categories(values: Values) -> list[Any]:
    """Distinct values, ascending, None last."""
    out: list[Any] = []
    for value in known(values):
        if value not in out:
            out.append(value)
    return sorted(out) + ([None] if len(known(values)) < len(values) else [])


def hot(value: Any, among: Values) -> list[float]:
    """One 1.0 at the place of the value, zeros elsewhere."""
    if not known([value]):
        value = None
    return [1.0 if category == value else 0.0 for category in among]


def filled(values: Values, strategy: str, fill_value: Any) -> list[Any]:
    """One column as ``handle_missing_values`` returns it; not for ``drop``."""
    there = sorted(known(values))
    out: list[Any] = []
    for value in values:
        if known([value]):
            out.append(value)
        elif strategy == "constant":
            out.append(0 if fill_value is None else fill_value)
        elif strategy == "forward":
            out.append(out[-1] if out else None)
        elif not there:
            out.append(None)
        elif strategy == "mean":
            exact = mean(there)
            assert exact is not None
            out.append(float(exact))
        elif strategy == "median":
            out.append(percentile(there, 50.0))
        else:
            out.append(max(there, key=lambda v: (there.count(v), -there.index(v))))
    return out


def percentile(values: Values, at: float) -> float:
    """The percentile of sorted values, interpolated linearly."""
    place = Fraction(at) / 100 * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    step = (Fraction(values[high]) - Fraction(values[low])) * (place - low)
    return float(Fraction(values[low]) + step)


def clipped(values: Values, method: str, threshold: float) -> list[float | None]:
    """One column as ``handle_outliers`` returns it."""
    there = sorted(known(values))
    if not there:
        return list(values)
    if method == "zscore":
        centre, spread = mean(there), variance(there)
        assert centre is not None
        assert spread is not None
        reach = threshold * math.sqrt(spread)
        low, high = float(centre) - reach, float(centre) + reach
    else:
        at = 25.0 if method == "iqr" else threshold
        low, high = percentile(there, at), percentile(there, 100.0 - at)
        if method == "iqr":
            reach = threshold * (high - low)
            low, high = low - reach, high + reach
    return [min(max(v, low), high) if known([v]) else None for v in values]


def best(scores: Sequence[float], k: int) -> list[int]:
    """Places of the greatest scores, the first of equal ones first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def correlation(left: Values, right: Values) -> float:
    """Pearson's correlation of the rows in which both are there; 0 where one does not vary."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if known([a]) and known([b])]
    a_mean, b_mean = mean([a for a, _ in both]), mean([b for _, b in both])
    a_var, b_var = variance([a for a, _ in both]), variance([b for _, b in both])
    if not a_var or not b_var or a_mean is None or b_mean is None:
        return 0.0
    total = sum((Fraction(a) - a_mean) * (Fraction(b) - b_mean) for a, b in both) / len(both)
    return float(total) / math.sqrt(a_var) / math.sqrt(b_var)
