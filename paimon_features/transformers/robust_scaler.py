"""A scaler that is robust to outliers: by the median and a range of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Params
from paimon_features.transformers.bin_grid import check_grid, grid_params
from paimon_features.transformers.normal_distribution import normal_quantile
from paimon_features.transformers.numeric_base import EPS, CenteringScaler
from paimon_features.transformers.quantile_fitting import QuantileLearner
from paimon_features.transformers.setting_checks import flag, pair, wrong


class RobustScaler(QuantileLearner, CenteringScaler):
    """Subtracts the median and divides by the range of two percentiles, ``quantile_range``.

    ``with_centering`` and ``with_scaling`` disable a step. ``unit_variance`` scales such that
    normally distributed values have variance 1. A range below ten units in the last place of 1
    does not scale. A column without values results in NaN. Percentiles are interpolated linearly,
    and exact from ``fit`` without a ``grid``. Over a grid of edges ``partial_fit`` and ``merge``
    equal a single ``fit``, and percentiles are within the width of a bin (``quantile_errors_``).

    >>> scaler = RobustScaler().fit([[1.0], [2.0], [3.0], [4.0], [1000.0]])
    >>> scaler.transform([[3.0], [5.0], [None]])
    [[0.0], [1.0], [None]]
    >>> part = RobustScaler(grid=[0.0, 2.0, 4.0]).fit([1.0, 2.0])
    >>> part.merge(RobustScaler(grid=[0.0, 2.0, 4.0]).fit([3.0])).quantile_errors_.tolist()
    [[0.5], [1.0], [0.5]]
    """

    kind = "robust_scaler"
    optional_settings = frozenset({"copy"})

    def __init__(
        self,
        *,
        with_centering: bool = True,
        with_scaling: bool = True,
        quantile_range: tuple[float, float] = (25.0, 75.0),
        unit_variance: bool = False,
        copy: bool = True,
        grid: Sequence[Any] | None = None,
    ) -> None:
        self.copy = copy
        self.with_centering, self.with_scaling = with_centering, with_scaling
        self.quantile_range = quantile_range
        self.unit_variance = unit_variance
        self.grid = grid

    def _percents(self, rows: int) -> Floats:
        low, high = self.settings_.quantile_range
        return np.array([low, 50.0, high])

    def _exact(self, columns: Sequence[Floats], percents: Floats) -> Floats:
        out = super()._exact(columns, percents)
        for index, values in enumerate(columns):
            present = values[~np.isnan(values)]
            if len(present):
                out[1, index] = np.median(present)  # as scikit-learn; percentiles round differently
        return out

    def _take(self) -> None:
        self.center_: Floats | None = None
        self.scale_ = None
        if not self._quantiles.size:
            return
        low, centre, high = self._quantiles
        if self.settings_.with_centering:
            self.center_ = centre
        scale = high - low
        scale = np.where(scale < 10 * EPS, 1.0, scale)
        if self.settings_.unit_variance:
            ends = normal_quantile(np.array(self.settings_.quantile_range) / 100)
            scale = scale / (ends[1] - ends[0])
        if self.settings_.with_scaling:
            self.scale_ = scale

    @property
    def _center(self) -> Floats | None:
        return self.center_

    def _settings(self) -> Params:
        ends = pair(self.quantile_range)
        if ends is None or not 0 <= ends[0] <= ends[1] <= 100:
            raise wrong(self, "quantile_range", self.quantile_range, "two percentages, ascending")
        if flag(self, "unit_variance", self.unit_variance) and not 0 < ends[0] < ends[1] < 100:
            raise TransformError(
                f"quantile_range={self.quantile_range!r} with unit_variance: a normal distribution "
                "has no such range; expected two different percentages between 0 and 100"
            )
        return {
            "with_centering": flag(self, "with_centering", self.with_centering),
            "with_scaling": flag(self, "with_scaling", self.with_scaling),
            "quantile_range": list(ends),
            "unit_variance": bool(self.unit_variance),
            "grid": grid_params(check_grid(self.grid, "RobustScaler")),
        }
