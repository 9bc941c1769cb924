"""Fitted transformers of scikit-learn as ours: by their fitted state, where that is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import FeatureTransformer, StoredTransformer
from paimon_features.transformers.json_values import null_for_nan


def from_sklearn(estimator: Any) -> StoredTransformer:
    """Return a fitted transformer of scikit-learn as one that can be stored.

    Its parameters are taken bit for bit, so that both return the same numbers. scikit-learn is not
    needed afterwards.

    Raises
    ------
    TransformError
        For one that is not fitted, of another kind, or with a setting or a state that ours cannot
        have.
    """
    kind = type(estimator).__name__
    if kind not in _STATES:
        raise TransformError(
            f"a {kind} of scikit-learn cannot be a step; supported: {', '.join(_STATES)}; fit our "
            "transformer of the same name, or put ours into scikit-learn's pipeline"
        )
    if not hasattr(estimator, "n_features_in_"):
        raise TransformError(
            f"this {kind} of scikit-learn is not fitted; fit() it first, or use our {kind}"
        )
    names = getattr(estimator, "feature_names_in_", None)
    params = {
        "names": None if names is None else list(map(str, names)),
        "rows": int(np.max(getattr(estimator, "n_samples_seen_", 0))),
        **_STATES[kind](estimator),
    }
    out = FeatureTransformer.from_params(params)
    assert isinstance(out, StoredTransformer)
    for name in ("mean_", "scale_", "min_", "max_abs_", "quantiles_", "references_"):
        theirs, ours = getattr(estimator, name, None), getattr(out, name, None)
        if theirs is not None and ours is not None and not np.array_equal(theirs, ours, True):
            raise TransformError(
                f"the {name} of this {kind} of scikit-learn is not one that ours can have; fit our "
                f"{kind} on the data"
            )
    return out


def _standard(of: Any) -> dict[str, Any]:
    width = of.n_features_in_
    count = np.broadcast_to(np.asarray(of.n_samples_seen_, np.float64), width)
    mean = np.zeros(width) if of.mean_ is None else of.mean_
    variance = np.ones(width) if of.var_ is None else of.var_
    return {
        "kind": "standard_scaler",
        "with_mean": bool(of.with_mean),
        "with_std": bool(of.with_std),
        "count": [int(n) if n == int(n) else n for n in count.tolist()],
        "mean": _numbers(mean),
        "mean_rest": [0.0] * width,
        "squares": _numbers(_product(variance, count)),
    }


def _product(variance: Floats, count: Floats) -> Floats:
    """Return squares that divided by the count are the variance, if there are such floats."""
    out = variance * count
    for near in (np.nextafter(out, -np.inf), np.nextafter(out, np.inf)):
        out = np.where((out / count != variance) & (near / count == variance), near, out)
    return out


def _min_max(of: Any) -> dict[str, Any]:
    return {
        "kind": "min_max_scaler",
        "feature_range": [float(end) for end in of.feature_range],
        "clip": bool(of.clip),
        "min": null_for_nan(of.data_min_),
        "max": null_for_nan(of.data_max_),
    }


def _max_abs(of: Any) -> dict[str, Any]:
    clip = bool(getattr(of, "clip", False))
    return {"kind": "max_abs_scaler", "clip": clip, "max_abs": null_for_nan(of.max_abs_)}


def _quantiles(of: Any) -> dict[str, Any]:
    return {
        "kind": "quantile_transformer",
        "n_quantiles": int(of.n_quantiles_),
        "output_distribution": of.output_distribution,
        "subsample": None,
        "random_state": None,
        "grid": None,
        "rows": int(of.n_quantiles_),
        "quantiles": [null_for_nan(row) for row in of.quantiles_],
    }


def _one_hot(of: Any) -> dict[str, Any]:
    if of.min_frequency is not None or of.max_categories is not None:
        raise TransformError(
            "a OneHotEncoder of scikit-learn with infrequent categories has no counts to take; fit "
            "our OneHotEncoder on the data"
        )
    if of.drop is not None and not isinstance(of.drop, str):
        raise TransformError(
            f"drop={of.drop!r}: a category that is dropped by name is not supported; use 'first', "
            "'if_binary' or None"
        )
    categories = []
    for column in of.categories_:
        values = [None if _is_missing(value) else value for value in column.tolist()]
        if values.count(None) > 1:
            raise TransformError("None and NaN are two categories of it, and one of ours")
        categories.append(values)
    return {
        "kind": "one_hot_encoder",
        "handle_unknown": of.handle_unknown,
        "drop": of.drop,
        "categories": categories,
        "declared": True,
    }


def _interaction(of: Any) -> dict[str, Any]:
    if of.degree not in (2, (0, 2), (1, 2)) or not of.interaction_only or of.include_bias:
        raise TransformError(
            "PolynomialFeatures of scikit-learn: expected degree=2, interaction_only=True, "
            "include_bias=False, the products of pairs"
        )
    return {
        "kind": "interaction",
        "interactions": None,
        "keep": True,
        "zero": 0.0,
        "width": int(of.n_features_in_),
    }


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _numbers(values: Any) -> list[float]:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise TransformError("it was fitted on a column without values; ours has no such state")
    numbers: list[float] = array.tolist()
    return numbers


_STATES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "QuantileTransformer": _quantiles,
    "OneHotEncoder": _one_hot,
    "PolynomialFeatures": _interaction,
}
