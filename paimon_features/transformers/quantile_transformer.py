"""A transformer that maps any distribution to a uniform or normal one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Params
from paimon_features.transformers.bin_grid import check_grid, grid_params
from paimon_features.transformers.normal_distribution import normal_quantile, normal_share
from paimon_features.transformers.numeric_base import Columns, ColumnwiseTransformer
from paimon_features.transformers.quantile_fitting import QuantileLearner, check_subsample, sampled
from paimon_features.transformers.setting_checks import integer, one_of

_DISTRIBUTIONS = ("uniform", "normal")
EDGE = 1e-7
"""Distance from an end of the distribution that counts as the end (as in scikit-learn)."""


class QuantileTransformer(QuantileLearner, ColumnwiseTransformer):
    """Maps a value to its cumulative share of the fitted values, or to the normal quantile of it.

    ``n_quantiles`` (at most the number of rows) are fitted at equal distances, with linear
    interpolation in between; values outside of the fitted range map to the ends: 0 and 1, or about
    ±5.2 of a normal distribution. ``fit`` on more than ``subsample`` rows draws a sample by
    ``random_state`` (None: 0); ``subsample=None`` uses all rows. Over a ``grid`` of edges all rows
    are counted, ``partial_fit`` and ``merge`` equal a single ``fit``, and each quantile is within
    the width of its bin (``quantile_errors_``). A column without values results in NaN.

    >>> transformer = QuantileTransformer(n_quantiles=3).fit([[10.0], [30.0], [50.0]])
    >>> transformer.transform([[20.0], [45.0], [1000.0], [None]])
    [[0.25], [0.875], [1.0], [None]]
    >>> transformer.inverse_transform([[0.5]])
    [[30.0]]
    """

    kind = "quantile_transformer"
    optional_settings = frozenset({"copy"})

    def __init__(
        self,
        *,
        n_quantiles: int = 1000,
        output_distribution: str = "uniform",
        subsample: int | None = 10_000,
        random_state: int | None = None,
        copy: bool = True,
        grid: Sequence[Any] | None = None,
    ) -> None:
        self.copy = copy
        self.n_quantiles = n_quantiles
        self.output_distribution = output_distribution
        self.subsample, self.random_state = subsample, random_state
        self.grid = grid

    @property
    def n_quantiles_(self) -> int:
        """Number of fitted quantiles."""
        self._check_fitted()
        return len(self._quantiles)

    @property
    def quantiles_(self) -> Floats:
        """The fitted quantiles, index (quantile, column)."""
        self._check_fitted()
        return self._quantiles

    def _percents(self, rows: int) -> Floats:
        return self._references(max(1, min(self.settings_.n_quantiles, rows))) * 100

    @staticmethod
    def _references(count: int) -> Floats:
        return np.linspace(0, 1, count, endpoint=True)

    def _drawn(self, columns: Sequence[Floats]) -> Sequence[Floats]:
        return sampled(columns, self.settings_.subsample, False, self.settings_.random_state)

    def _take(self) -> None:
        self.references_ = self._references(len(self._quantiles))

    def _settings(self) -> Params:
        sample = check_subsample(self, self.subsample, self.random_state)
        count = integer(self, "n_quantiles", self.n_quantiles, 1)
        rows = sample["subsample"]
        if self.grid is None and rows is not None and count > rows:
            raise TransformError(
                f"{type(self).__name__}: n_quantiles={count} exceeds subsample={rows} rows"
            )
        return {
            "n_quantiles": count,
            "output_distribution": one_of(
                self, "output_distribution", self.output_distribution, _DISTRIBUTIONS
            ),
            **sample,
            "grid": grid_params(check_grid(self.grid, type(self).__name__)),
        }

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        self._each(self._to_shares, values, columns, out)

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        self._each(self._from_shares, values, columns, out)

    def _each(self, step: Any, values: Floats, columns: Columns, out: Floats) -> None:
        if not isinstance(columns, int):
            for index in range(self.width):
                self._each(step, values[:, index], index, out[:, index])
            return
        quantiles = self._quantiles[:, columns]
        if np.isnan(quantiles[0]):
            out[:] = np.nan
            return
        mapped = step(values, quantiles)
        if len(quantiles) == 1:  # np.interp does not keep NaN then
            mapped[np.isnan(values)] = np.nan
        out[:] = mapped

    def _to_shares(self, values: Floats, quantiles: Floats) -> Floats:
        is_normal = self.settings_.output_distribution == "normal"
        lowest, highest = quantiles[0], quantiles[-1]
        if is_normal:
            low, high = values - EDGE < lowest, values + EDGE > highest
        else:
            low, high = values == lowest, values == highest
        # from both sides, so that a value equal to several quantiles gets the middle of its shares
        up = np.interp(values, quantiles, self.references_)
        down = np.interp(-values, -quantiles[::-1], -self.references_[::-1])
        out: Floats = 0.5 * (up - down)
        out[high] = 1.0
        out[low] = 0.0
        if is_normal:
            # ends that inverse_transform can distinguish
            least = EDGE - np.spacing(1)
            out = np.clip(
                normal_quantile(out), *normal_quantile(np.array([least, 1 - least])).tolist()
            )
        return out

    def _from_shares(self, values: Floats, quantiles: Floats) -> Floats:
        if self.settings_.output_distribution == "normal":
            values = normal_share(values)
            low, high = values - EDGE < 0, values + EDGE > 1
        else:
            low, high = values == 0, values == 1
        out: Floats = np.interp(values, self.references_, quantiles)
        out[high] = quantiles[-1]
        out[low] = quantiles[0]
        return out
