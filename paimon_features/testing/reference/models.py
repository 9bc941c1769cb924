"""The models of Flink ML as loops over one row, determined by their stored parameters alone.

Sums go over the features in their order, as the models add them, so that both give the same
number to the last bit. None is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.testing.reference.numeric import Made, Row, of_each


def _vector(
    width_out: Callable[[Mapping[str, Any]], int],
    step: Callable[[Mapping[str, Any], list[float]], Made],
) -> Callable[[Mapping[str, Any], Row], Made]:
    """Return a model of whole rows: a null in one makes nulls of all."""

    def made(params: Mapping[str, Any], row: Row) -> Made:
        if any(value is None for value in row):
            return [None] * width_out(params), False
        return step(params, [float(value) for value in row])

    return made


def _each(
    step: Callable[[Mapping[str, Any], Mapping[str, Any], int, float], float],
) -> Callable[[Mapping[str, Any], Row], Made]:
    """Return a model that makes a number of each number, and null of null."""
    return of_each(lambda params, i, v: step(params["model_data"], params["settings"], i, v))


def _product(params: Mapping[str, Any], row: Sequence[float]) -> float:
    total = 0.0
    for value, factor in zip(row, params["model_data"]["coefficient"], strict=True):
        total += value * factor
    return total


def _exp(value: float) -> float:
    # NumPy's, which is not the C library's to the last bit
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(value)))


def _logistic(params: Mapping[str, Any], row: list[float]) -> Made:
    product = _product(params, row)
    probability = 1 - 1 / (1 + _exp(product))
    return [1.0 if product >= 0 else 0.0, 1 - probability, probability], False


def _svc(params: Mapping[str, Any], row: list[float]) -> Made:
    product = _product(params, row)
    above = product >= params["settings"]["threshold"]
    return [1.0 if above else 0.0, product, -product], False


def _regression(params: Mapping[str, Any], row: list[float]) -> Made:
    return [_product(params, row)], False


def _kmeans(params: Mapping[str, Any], row: list[float]) -> Made:
    measure = params["settings"]["distance_measure"]
    if measure == "cosine" and not any(row):
        return [math.nan], True
    distances = [_distance(row, c, measure) for c in params["model_data"]["centroids"]]
    if math.isnan(distances[0]):
        return [math.nan], False
    return [float(distances.index(min(distances)))], False


def _distance(row: Sequence[float], centroid: Sequence[float], measure: str) -> float:
    total = squares = 0.0
    for value, place in zip(row, centroid, strict=True):
        if measure == "cosine":
            total += value * place
            squares += value * value
        else:
            away = value - place
            total += abs(away) if measure == "manhattan" else away * away
    if measure != "cosine":
        return total
    return 1 - total / math.sqrt(squares) / math.sqrt(sum(place * place for place in centroid))


def _standard(data: Any, settings: Any, index: int, value: float) -> float:
    std = data["std"][index]
    moved = value - data["mean"][index] if settings["with_mean"] else value
    return moved * (1 / std if std else 0.0) if settings["with_std"] else moved


def _min_max(data: Any, settings: Any, index: int, value: float) -> float:
    low, high = data["minVector"][index], data["maxVector"][index]
    start, end = settings["min"], settings["max"]
    if abs(low - high) < 1e-5:
        return float(value * 0.0 + (end + start) / 2)
    scale = (end - start) / (high - low)
    return float(value * scale + (start - low * scale))


def _max_abs(data: Any, settings: Any, index: int, value: float) -> float:
    most = data["maxVector"][index]
    return value * (1 / most if most else 1.0)


def _robust(data: Any, settings: Any, index: int, value: float) -> float:
    reach = data["ranges"][index]
    moved = value - data["medians"][index] if settings["with_centering"] else value
    return moved * (1 / reach if reach else 0.0) if settings["with_scaling"] else moved


def _bins(data: Any, settings: Any, index: int, value: float) -> float:
    edges = data["binEdges"][index]
    last = max(len(edges) - 2, 0)
    if math.isnan(value):
        return float(last)
    below = sum(1 for edge in edges if edge <= value) - 1
    return float(min(max(below, 0), last))


def _imputer(params: Mapping[str, Any], row: Row) -> Made:
    stands_for = params["settings"]["missing_value"]
    out = []
    for value, surrogate in zip(row, params["model_data"]["surrogates"], strict=True):
        if value is None or (math.isnan(value) if stands_for is None else value == stands_for):
            value = surrogate
        out.append(float(value))
    return out, False


def _one_hot(params: Mapping[str, Any], row: Row) -> Made:
    out: list[Any] = []
    failed = False
    for value, most in zip(row, params["model_data"]["maxIndex"], strict=True):
        places = range(int(most) + (0 if params["settings"]["drop_last"] else 1))
        out += [None if value is None else float(value == place) for place in places]
        failed = failed or (value is not None and value not in range(int(most) + 1))
    return out, failed


def _interaction(params: Mapping[str, Any], row: list[float]) -> Made:
    values, groups = list(row), []
    for size in params["model_data"]["sizes"]:
        groups.append(values[: int(size)])
        values = values[int(size) :]
    out = groups.pop()
    while groups:
        left = groups.pop()
        out = [value * other for value in left for other in out]
    return out, False


def _products(params: Mapping[str, Any]) -> int:
    return int(math.prod(params["model_data"]["sizes"]))


KINDS: dict[str, Callable[[Mapping[str, Any], Row], Made]] = {
    "flink_ml_imputer": _imputer,
    "flink_ml_interaction": _vector(_products, _interaction),
    "flink_ml_k_bins_discretizer": _each(_bins),
    "flink_ml_kmeans": _vector(lambda params: 1, _kmeans),
    "flink_ml_linear_regression": _vector(lambda params: 1, _regression),
    "flink_ml_linear_svc": _vector(lambda params: 3, _svc),
    "flink_ml_logistic_regression": _vector(lambda params: 3, _logistic),
    "flink_ml_max_abs_scaler": _each(_max_abs),
    "flink_ml_min_max_scaler": _each(_min_max),
    "flink_ml_one_hot_encoder": _one_hot,
    "flink_ml_robust_scaler": _each(_robust),
    "flink_ml_standard_scaler": _each(_standard),
}
"""What each kind makes of a row."""
