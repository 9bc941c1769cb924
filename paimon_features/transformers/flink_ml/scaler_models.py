"""The models of Flink ML's scalers: each place of a vector moved and stretched by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paimon_features.core._arrow import pa
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.flink_ml.model import (
    ModelData,
    VectorModel,
    one_number_per_feature,
)

_COLUMNS = {"input_col": "input", "output_col": "output"}


def _inverse(values: Floats, of_zero: float) -> list[float]:
    return [1.0 / value if value != 0 else of_zero for value in values.tolist()]


class StandardScalerModel(VectorModel):
    """Subtracts the mean (``with_mean``) and divides by the deviation of n - 1 (``with_std``).

    A column whose deviation is 0 becomes 0. A model of ``OnlineStandardScaler`` counts its
    versions from 0 and adds the column ``model_version_col``.

    >>> model = StandardScalerModel({"mean": [1.0], "std": [2.0]}, with_mean=True)
    >>> model.transform([[5.0]]).tolist()
    [2.0]
    """

    kind = "flink_ml_standard_scaler"
    estimator = "StandardScaler"
    data_names = ("mean", "std", "version", "timestamp")
    defaults: ClassVar[Mapping[str, Any]] = {
        **_COLUMNS,
        "with_mean": False,
        "with_std": True,
        "model_version_col": None,
    }

    def __init__(self, model_data: ModelData, **options: Any) -> None:
        super().__init__({"version": 0, "timestamp": None, **model_data}, **options)

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        vectors = one_number_per_feature({name: model_data[name] for name in ("mean", "std")})
        last = model_data["timestamp"]
        return {
            **vectors,
            "version": int(model_data["version"]),
            "timestamp": None if last is None else int(last),
        }

    def _made(self, columns: Sequence[Floats]) -> list[Floats]:
        means = self.model_data["mean"].tolist()
        scales = _inverse(self.model_data["std"], 0.0)
        out = []
        for values, mean, scale in zip(columns, means, scales, strict=True):
            moved = values - mean if self.settings["with_mean"] else values
            out.append(moved * scale if self.settings["with_std"] else moved)
        return out

    @property
    def _stays_sparse(self) -> bool:
        return not self.settings["with_mean"]

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        name = self.settings["model_version_col"]
        version = {} if name is None else {name: pa.repeat(self.model_data["version"], len(table))}
        return {**super()._outputs(table), **version}


class MinMaxScalerModel(VectorModel):
    """Stretches what was least to ``min`` and what was greatest to ``max``.

    A column of which they were less than 1e-5 apart becomes ``(min + max) / 2``.

    >>> model = MinMaxScalerModel({"minVector": [0.0, 3.0], "maxVector": [4.0, 3.0]})
    >>> model.transform([[1.0, 9.0]]).tolist()
    [[0.25, 0.5]]
    """

    kind = "flink_ml_min_max_scaler"
    estimator = "MinMaxScaler"
    data_names = ("minVector", "maxVector")
    defaults: ClassVar[Mapping[str, Any]] = {**_COLUMNS, "min": 0.0, "max": 1.0}

    def _made(self, columns: Sequence[Floats]) -> list[Floats]:
        start, end = self.settings["min"], self.settings["max"]
        least, greatest = (self.model_data[name].tolist() for name in self.data_names)
        out = []
        for values, low, high in zip(columns, least, greatest, strict=True):
            constant = abs(low - high) < 1.0e-5
            scale = 0.0 if constant else (end - start) / (high - low)
            offset = (end + start) / 2 if constant else start - low * scale
            out.append(values * scale + offset)
        return out


class MaxAbsScalerModel(VectorModel):
    """Divides by the greatest absolute value; a column of zeros stays as it is.

    >>> MaxAbsScalerModel({"maxVector": [4.0, 0.0]}).transform([[-1.0, 3.0]]).tolist()
    [[-0.25, 3.0]]
    """

    kind = "flink_ml_max_abs_scaler"
    estimator = "MaxAbsScaler"
    data_names = ("maxVector",)
    defaults: ClassVar[Mapping[str, Any]] = _COLUMNS
    keeps_zeros = True

    def _made(self, columns: Sequence[Floats]) -> list[Floats]:
        scales = _inverse(self.model_data["maxVector"], 1.0)
        return [values * scale for values, scale in zip(columns, scales, strict=True)]


class RobustScalerModel(VectorModel):
    """Subtracts the median (``with_centering``), divides by the range (``with_scaling``).

    The range is that between the quantiles ``lower`` and ``upper``; where it is 0 the column
    becomes 0.

    >>> RobustScalerModel({"medians": [4.0], "ranges": [4.0]}).transform([[3.0]]).tolist()
    [0.75]
    """

    kind = "flink_ml_robust_scaler"
    estimator = "RobustScaler"
    data_names = ("medians", "ranges")
    defaults: ClassVar[Mapping[str, Any]] = {
        **_COLUMNS,
        "with_centering": False,
        "with_scaling": True,
    }

    def _made(self, columns: Sequence[Floats]) -> list[Floats]:
        medians = self.model_data["medians"].tolist()
        scales = _inverse(self.model_data["ranges"], 0.0)
        out = []
        for values, median, scale in zip(columns, medians, scales, strict=True):
            moved = values - median if self.settings["with_centering"] else values
            out.append(moved * scale if self.settings["with_scaling"] else moved)
        return out
