"""Transformers of numbers as loops: a row by the stored parameters, quantiles by definition.

The values of ``grid_percentile`` are found bin by bin, those of ``ranked`` by sorting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Any

Params = Mapping[str, Any]
Row = Sequence[Any]
Made = tuple[list[Any], bool]
"""The values of a row, and whether a transformer refuses it (then the values mean nothing)."""

EPS = 2.0**-52


def missing(value: Any) -> bool:
    """Return True for null and NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


# -- quantiles ------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float, method: str = "linear") -> float:
    """Return a percentile of values by NumPy's definition of this name.

    Where it lies among the ranks is found as NumPy does, in floats; what lies there, exactly.
    """
    ordered = sorted(Fraction(v) for v in values)
    n, share = len(ordered), percent / 100
    at = (n - 1) * share if method == "linear" else n * share - 1
    below = math.floor(at)
    further = at - below
    if method == "averaged_inverted_cdf":
        further = 1.0 if further else 0.5
    elif method == "inverted_cdf":
        further = 1.0 if further else 0.0
    first, second = (ordered[min(max(rank, 0), n - 1)] for rank in (below, below + 1))
    return float(first + (second - first) * Fraction(further))


def steps(high: float, count: int) -> list[float]:
    """Return numbers from 0 to ``high`` in equal steps, as ``numpy.linspace`` rounds them."""
    return [k * (high / count) for k in range(count)] + [high]


def grid_percentile(
    edges: Sequence[float],
    counts: Sequence[int],
    low: float | None,
    high: float | None,
    percent: float,
    method: str = "linear",
) -> float:
    """Return a percentile of the values that were counted, spread evenly in each bin.

    NaN of none.
    """
    if low is None or high is None:
        return math.nan
    spread: list[float] = []
    starts, ends = [low, *edges], [*edges, high]
    for start, end, count in zip(starts, ends, counts, strict=True):
        start, end = max(start, low), min(end, high)
        spread += [start + (end - start) * (k + 0.5) / count for k in range(count)]
    spread[0], spread[-1] = low, high
    return percentile(spread, percent, method)


def fitted_percentiles(
    params: Params, column: int, percents: Sequence[float], method: str = "linear"
) -> list[float]:
    """Return the percentiles of a column in parameters: as they stand there, or of counts on a
    grid."""
    if params["grid"] is None:
        quantiles = [row[column] for row in params["quantiles"]]
        return [math.nan if v is None else v for v in quantiles]
    return [
        grid_percentile(
            _edges(params, column),
            params["counts"][column],
            params["min"][column],
            params["max"][column],
            percent,
            method,
        )
        for percent in percents
    ]


def _edges(params: Params, column: int) -> list[float]:
    grid = params["grid"]
    return list(grid[column] if isinstance(grid[0], list) else grid)


# -- one row --------------------------------------------------------------------------------


def of_each(step: Callable[[Params, int, float], float]) -> Callable[[Params, Row], Made]:
    """Return a kind that makes one number of each number, and null of null."""

    def made(params: Params, row: Row) -> Made:
        return [None if v is None else step(params, i, float(v)) for i, v in enumerate(row)], False

    return made


def _max_abs(params: Params, index: int, value: float) -> float:
    most = params["max_abs"][index]
    if most is None:
        return math.nan
    scaled = float(value / (1.0 if most < 10 * EPS else most))
    return scaled if math.isnan(scaled) or not params.get("clip") else min(max(scaled, -1.0), 1.0)


def _robust(params: Params, index: int, value: float) -> float:
    ends = params["quantile_range"]
    low, centre, high = fitted_percentiles(params, index, [ends[0], 50.0, ends[1]])
    if params["with_centering"]:
        value = value - centre
    if params["with_scaling"]:
        scale = 1.0 if high - low < 10 * EPS else high - low
        if params["unit_variance"]:
            normal = NormalDist()
            scale /= normal.inv_cdf(ends[1] / 100) - normal.inv_cdf(ends[0] / 100)
        value = value / scale
    return value


def _quantile(params: Params, index: int, value: float) -> float:
    count = max(1, min(params["n_quantiles"], params["rows"]))
    shares = steps(1.0, count - 1) if count > 1 else [0.0]
    seen = fitted_percentiles(params, index, [share * 100 for share in shares])
    if math.isnan(value) or math.isnan(seen[0]):
        return math.nan
    is_normal = params["output_distribution"] == "normal"
    near = 1e-7 if is_normal else 0.0
    if value == seen[0] or value - near < seen[0]:
        share = 0.0
    elif value == seen[-1] or (is_normal and value + near > seen[-1]):
        share = 1.0
    elif value > seen[-1]:
        share = shares[-1]  # of one quantile alone that is 0
    else:
        # the middle of the shares at which the curve has this value
        touching = [
            k for k in range(count - 1) if seen[k] <= value <= seen[k + 1] and seen[k] < seen[k + 1]
        ]
        positions = [
            shares[k] + (value - seen[k]) / (seen[k + 1] - seen[k]) * (shares[k + 1] - shares[k])
            for k in touching
        ]
        share = (positions[0] + positions[-1]) / 2
    if not is_normal:
        return share
    least = 1e-7 - math.ulp(1.0)
    return NormalDist().inv_cdf(min(max(share, least), 1 - least))


def _log(params: Params, row: Row) -> Made:
    offset, failed = params["offset"], False
    out: list[Any] = []
    for value in row:
        if missing(value):
            out.append(value)
        elif params["signed"]:
            out.append(math.copysign(math.log1p(abs(value) / offset), value))
        elif value <= -offset:
            failed = True
            out.append(math.nan)
        else:
            out.append(math.log1p(value) if offset == 1 else math.log(value + offset))
    return out, failed


def _clip(params: Params, index: int, value: float) -> float:
    if params["low"] is not None and value < params["low"]:
        return float(params["low"])
    if params["high"] is not None and value > params["high"]:
        return float(params["high"])
    return value


_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "product": lambda a, b: a * b,
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "abs_difference": lambda a, b: abs(a - b),
    "ratio": lambda a, b: a / b,
    "min": min,
    "max": max,
}


def _interaction(params: Params, row: Row) -> Made:
    triples = params["interactions"]
    if triples is None:
        width = len(row)
        triples = [(i, j, "product") for i in range(width) for j in range(i + 1, width)]
    numbers = [None if v is None else float(v) for v in row]
    out: list[Any] = list(numbers) if params["keep"] else []
    for left, right, of in triples:
        a, b = (
            numbers[c if isinstance(c, int) else params["names"].index(c)] for c in (left, right)
        )
        if a is None or b is None:
            out.append(None)
        elif math.isnan(a) or math.isnan(b):
            out.append(math.nan)
        elif of == "ratio" and b == 0:
            out.append(params["zero"])
        else:
            out.append(_OPERATIONS[of](a, b))
    return out, False


def imputed_with(params: Params, column: int) -> Any:
    """Return what a column is filled with; None where nothing was seen."""
    strategy = params["strategy"]
    if strategy == "mean":
        return params["mean"][column] if params["count"][column] else None
    if strategy == "median":
        if params["grid"] is None:
            return params["median"][column]
        (median,) = fitted_percentiles(params, column, [50.0])
        return None if math.isnan(median) else median
    if strategy == "most_frequent":
        pairs = sorted(params["counts"][column])
        return max(pairs, key=lambda pair: pair[1])[0] if pairs else None
    texts = params["texts"][column]
    if texts is None:
        return None
    default = "missing_value" if texts else 0.0
    return default if params["fill_value"] is None else params["fill_value"]


def _imputer(params: Params, row: Row) -> Made:
    out: list[Any] = []
    for column, value in enumerate(row):
        fill = imputed_with(params, column)
        if fill is None and params["keep_empty_features"]:
            fill = 0.0 if params["fill_value"] is None else params["fill_value"]
        if fill is None:
            continue
        given = value if isinstance(value, str | None) else float(value)
        out.append(fill if missing(value) else given)
    for column, value in enumerate(row):
        if params["add_indicator"] and params["missing"][column]:
            out.append(float(missing(value)))
    return out, False


def bins_of(params: Params, column: int) -> list[float] | None:
    """Return the inner edges of the bins of a column; None where nothing was seen."""
    n_bins = params["n_bins"]
    count = n_bins if isinstance(n_bins, int) else n_bins[column]
    if params["strategy"] == "uniform":
        low, high = (row[column] for row in params["quantiles"])
        if low is None:
            return None
        step = (high - low) / count
        return [low + k * step for k in range(1, count)] if low < high else []
    numbers = {count} if isinstance(n_bins, int) else set(n_bins)
    percents = [percent for n in sorted(numbers) for percent in steps(100.0, n)]
    start = sum(n + 1 for n in numbers if n < count)
    percentiles = fitted_percentiles(params, column, percents, params["quantile_method"])
    edges = percentiles[start : start + count + 1]
    if math.isnan(edges[0]):
        return None
    # an edge that is hardly above the one before is none
    wide = [e for k, e in enumerate(edges) if k == 0 or e - edges[k - 1] > 1e-8]
    return wide[1:-1]


def _k_bins(params: Params, row: Row) -> Made:
    out: list[Any] = []
    for column, value in enumerate(row):
        inner = bins_of(params, column)
        width = 1 if params["encode"] == "ordinal" else len(inner or ()) + 1
        if missing(value) or inner is None:
            out += [None if value is None else math.nan] * width
            continue
        chosen = sum(1 for edge in inner if value >= edge)
        if params["encode"] == "ordinal":
            out.append(float(chosen))
        else:
            out += [1.0 if k == chosen else 0.0 for k in range(width)]
    return out, False


NUMERIC_KINDS: dict[str, Callable[[Params, Row], Made]] = {
    "max_abs_scaler": of_each(_max_abs),
    "robust_scaler": of_each(_robust),
    "quantile_transformer": of_each(_quantile),
    "log_transform": _log,
    "clip": of_each(_clip),
    "interaction": _interaction,
    "imputer": _imputer,
    "k_bins_discretizer": _k_bins,
}


def is_inexact(params: Params) -> bool:
    """Return True if something in it is rounded in several ways: logarithms, what lies between
    edges."""
    if params.get("kind") in ("log_transform", "quantile_transformer"):
        return True
    if params.get("unit_variance") or params.get("grid") is not None:
        return True
    inside = [v for v in params.values() if isinstance(v, Mapping)]
    lists = [v for v in params.values() if isinstance(v, list)]
    inside += [v for items in lists for v in items if isinstance(v, Mapping)]
    return any(is_inexact(inner) for inner in inside)


def near(got: Any, expected: Any) -> bool:
    """Return True if equal up to the rounding of such a function; lists item by item."""
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(near, got, expected))
    if isinstance(got, float) and isinstance(expected, float):
        same = math.isnan(got) and math.isnan(expected)
        return same or abs(got - expected) <= 1e-12 * max(1.0, abs(expected))
    return type(got) is type(expected) and bool(got == expected)
