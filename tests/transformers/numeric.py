"""Numeric transformers of every kind and setting, and random data for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from paimon_features.transformers import (
    Clip,
    Imputer,
    InteractionFeatures,
    KBinsDiscretizer,
    LogTransform,
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
)

GRID = [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]

MAKERS: dict[str, Callable[[], StoredTransformer]] = {
    "standard": StandardScaler,
    "min_max": lambda: MinMaxScaler((-1, 2)),
    "max_abs": MaxAbsScaler,
    "standard_no_mean": lambda: StandardScaler(with_mean=False),
    "standard_no_deviation": lambda: StandardScaler(with_std=False),
    "standard_nothing": lambda: StandardScaler(with_mean=False, with_std=False),
    "min_max_clip": lambda: MinMaxScaler((-1, 2), clip=True),
    "max_abs_clip": lambda: MaxAbsScaler(clip=True),
    "robust": RobustScaler,
    "robust_unit": lambda: RobustScaler(quantile_range=(10, 80), unit_variance=True),
    "robust_no_centre": lambda: RobustScaler(with_centering=False),
    "robust_no_scale": lambda: RobustScaler(with_scaling=False),
    "robust_grid": lambda: RobustScaler(grid=GRID),
    "quantile": lambda: QuantileTransformer(n_quantiles=7),
    "quantile_normal": lambda: QuantileTransformer(n_quantiles=4, output_distribution="normal"),
    "quantile_grid": lambda: QuantileTransformer(n_quantiles=5, grid=GRID),
    "log": lambda: LogTransform(8.0),
    "log_signed": lambda: LogTransform(signed=True),
    "clip": lambda: Clip(-0.5, 1.0),
    "clip_below": lambda: Clip(low=0.0),
    "interaction": InteractionFeatures,
    "interaction_ratio": lambda: InteractionFeatures(
        [(0, 1, "ratio"), (1, 0, "abs_difference"), (0, 0, "max")], keep=False, zero=None
    ),
    "interaction_all": lambda: InteractionFeatures(
        [(1, 0, of) for of in ("sum", "difference", "ratio", "min", "max", "product")], zero=7.0
    ),
    "impute_mean": Imputer,
    "impute_median": lambda: Imputer("median", add_indicator=True),
    "impute_median_grid": lambda: Imputer("median", grid=GRID, keep_empty_features=True),
    "impute_most_frequent": lambda: Imputer("most_frequent", keep_empty_features=True),
    "impute_constant": lambda: Imputer("constant", fill_value=-1.0, add_indicator=True),
    "bins": lambda: KBinsDiscretizer(3),
    "bins_ordinal": lambda: KBinsDiscretizer([2, 5], encode="ordinal"),
    "bins_linear": lambda: KBinsDiscretizer(4, quantile_method="linear"),
    "bins_uniform": lambda: KBinsDiscretizer(4, encode="ordinal", strategy="uniform"),
    "bins_k_means": lambda: KBinsDiscretizer(3, strategy="kmeans"),
    "bins_grid": lambda: KBinsDiscretizer(4, encode="ordinal", grid=GRID),
    "bins_grid_lower": lambda: KBinsDiscretizer(3, quantile_method="inverted_cdf", grid=GRID),
}
"""A maker of an unfitted transformer of two columns for each kind and setting."""

IN_PARTS = [
    name for name in MAKERS
    if "grid" in name or "uniform" in name
    or not name.startswith(("robust", "quantile", "bins", "impute_median"))
]  # fmt: skip
"""Those that learn in parts and are merged."""


def data(dice: np.random.Generator, rows: int) -> Any:
    """Two columns from -8 up: ties, constants, gaps or none, one without a value."""
    columns = []
    for _ in range(2):
        kind = dice.integers(5)
        if kind == 0:
            column = dice.normal(size=rows)
        elif kind == 1:
            column = dice.integers(-2, 4, rows).astype(float)
        elif kind == 2:
            column = np.full(rows, dice.choice([0.0, 0.1, -1.5, 1e9]))
        elif kind == 3:
            column = np.full(rows, math.nan)
        else:
            column = 1e3 * dice.exponential(size=rows)
        if dice.random() < 0.5:
            column[dice.random(rows) < 0.3] = math.nan
        columns.append(np.maximum(column, -7.5))
    return np.column_stack(columns)


def nulls(matrix: Any) -> list[list[Any]]:
    """Rows of Python values, None for NaN."""
    return [[None if math.isnan(v) else v for v in row] for row in matrix.tolist()]
