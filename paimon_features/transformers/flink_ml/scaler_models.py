"""The models of Flink ML's scalers: one shift, scale and offset for each place of a vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class AffineSteps:
    """``(value - shift) * scale + offset``, one number per column; a step that is None is omitted.

    An omitted step keeps every bit, as adding 0 or multiplying by 1 does not for a zero's sign.
    """

    shift: list[float] | None = None
    scale: list[float] | None = None
    offset: list[float] | None = None

    def apply(self, columns: Sequence[Floats]) -> list[Floats]:
        """Return the columns after the steps."""
        out = list(columns)
        if self.shift is not None:
            out = [values - shift for values, shift in zip(out, self.shift, strict=True)]
        if self.scale is not None:
            out = [values * scale for values, scale in zip(out, self.scale, strict=True)]
        if self.offset is not None:
            out = [values + offset for values, offset in zip(out, self.offset, strict=True)]
        return out


class ScalerModel(VectorModel):
    """A model that scales each column by ``AffineSteps`` of its own."""

    @abstractmethod
    def _steps(self) -> AffineSteps:
        """Return the steps that the model data and the settings describe."""

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        return self._steps().apply(columns)


class StandardScalerModel(ScalerModel):
    """Subtracts the mean (``with_mean``) and divides by the deviation of n - 1 (``with_std``).

    A column whose deviation is 0 becomes 0. A model of ``OnlineStandardScaler`` counts its
    versions from 0 and adds the column ``model_version_col``.

    >>> model = StandardScalerModel({"mean": [1.0], "std": [2.0]}, with_mean=True)
    >>> model.transform([[5.0]]).tolist()
    [2.0]
    """

    kind = "flink_ml_standard_scaler"
    estimator = "StandardScalerStage"
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

    def _steps(self) -> AffineSteps:
        means, deviations = self.model_data["mean"], self.model_data["std"]
        return AffineSteps(
            means.tolist() if self.settings["with_mean"] else None,
            _inverse(deviations, 0.0) if self.settings["with_std"] else None,
        )

    @property
    def _stays_sparse(self) -> bool:
        return not self.settings["with_mean"]

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        name = self.settings["model_version_col"]
        version = {} if name is None else {name: pa.repeat(self.model_data["version"], len(table))}
        return {**super()._outputs(table), **version}


class MinMaxScalerModel(ScalerModel):
    """Stretches what was least to ``min`` and what was greatest to ``max``.

    A column of which they were less than 1e-5 apart becomes ``(min + max) / 2``.

    >>> model = MinMaxScalerModel({"minVector": [0.0, 3.0], "maxVector": [4.0, 3.0]})
    >>> model.transform([[1.0, 9.0]]).tolist()
    [[0.25, 0.5]]
    """

    kind = "flink_ml_min_max_scaler"
    estimator = "MinMaxScalerStage"
    data_names = ("minVector", "maxVector")
    defaults: ClassVar[Mapping[str, Any]] = {**_COLUMNS, "min": 0.0, "max": 1.0}

    def _steps(self) -> AffineSteps:
        start, end = self.settings["min"], self.settings["max"]
        least, greatest = (self.model_data[name].tolist() for name in self.data_names)
        scales, offsets = [], []
        for low, high in zip(least, greatest, strict=True):
            constant = abs(low - high) < 1.0e-5
            scale = 0.0 if constant else (end - start) / (high - low)
            scales.append(scale)
            offsets.append((end + start) / 2 if constant else start - low * scale)
        return AffineSteps(None, scales, offsets)


class MaxAbsScalerModel(ScalerModel):
    """Divides by the greatest absolute value; a column of zeros stays as it is.

    >>> MaxAbsScalerModel({"maxVector": [4.0, 0.0]}).transform([[-1.0, 3.0]]).tolist()
    [[-0.25, 3.0]]
    """

    kind = "flink_ml_max_abs_scaler"
    estimator = "MaxAbsScalerStage"
    data_names = ("maxVector",)
    defaults: ClassVar[Mapping[str, Any]] = _COLUMNS
    keeps_zeros = True

    def _steps(self) -> AffineSteps:
        return AffineSteps(scale=_inverse(self.model_data["maxVector"], 1.0))


class RobustScalerModel(ScalerModel):
    """Subtracts the median (``with_centering``), divides by the range (``with_scaling``).

    The range is that between the quantiles ``lower`` and ``upper``; where it is 0 the column
    becomes 0.

    >>> RobustScalerModel({"medians": [4.0], "ranges": [4.0]}).transform([[3.0]]).tolist()
    [0.75]
    """

    kind = "flink_ml_robust_scaler"
    estimator = "RobustScalerStage"
    data_names = ("medians", "ranges")
    defaults: ClassVar[Mapping[str, Any]] = {
        **_COLUMNS,
        "with_centering": False,
        "with_scaling": True,
    }

    def _steps(self) -> AffineSteps:
        medians, ranges = self.model_data["medians"], self.model_data["ranges"]
        return AffineSteps(
            medians.tolist() if self.settings["with_centering"] else None,
            _inverse(ranges, 0.0) if self.settings["with_scaling"] else None,
        )
