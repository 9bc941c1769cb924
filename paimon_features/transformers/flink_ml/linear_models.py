"""Linear models: a coefficient for each feature; there is no intercept, as in Flink ML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.flink_ml.model import Model, ModelData, one_number_per_feature
from paimon_features.transformers.flink_ml.vectors import (
    Matrix,
    SparseRows,
    dot,
    read_features,
    to_column,
)

_CLASSIFIER = {
    "features_col": "features",
    "prediction_col": "prediction",
    "raw_prediction_col": "rawPrediction",
}


class _LinearModel(Model):
    data_names: ClassVar[tuple[str, ...]] = ("coefficient",)

    @property
    def width(self) -> int:
        return len(self.model_data["coefficient"])

    def _product(self, columns: Sequence[Floats]) -> Floats:
        """Return features times coefficients, added in the order of the features.

        A matrix product adds in an order that depends on the number of rows: one request and a
        training set would differ in the last bit.
        """
        out = np.zeros(len(columns[0]))
        for values, factor in zip(columns, self.model_data["coefficient"], strict=True):
            out += values * factor
        return out

    def _results(self, features: Matrix) -> list[Floats]:
        if isinstance(features, SparseRows):
            # it adds in the order of the features too, and leaves out only zeros
            with np.errstate(all="ignore"):
                return self._of_product(dot(features, self.model_data["coefficient"]))
        return super()._results(features)

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        return self._of_product(self._product(columns))

    def _of_product(self, product: Floats) -> list[Floats]:
        return [product]


class _ClassifierModel(_LinearModel):
    @property
    def width_out(self) -> int:
        return 3

    def names_out(self, names: Sequence[str]) -> list[str]:
        raw = self.settings["raw_prediction_col"]
        return [self.settings["prediction_col"], f"{raw}_0", f"{raw}_1"]

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        features = self._fitting(read_features(table, self.settings["features_col"]))
        prediction, *raw = self._results(features)
        return {
            self.settings["prediction_col"]: pa.array(prediction),
            self.settings["raw_prediction_col"]: to_column(np.column_stack(raw)),
            **self._version_column(len(prediction)),
        }

    def _version_column(self, rows: int) -> dict[str, pa.Array]:
        return {}


class LogisticRegressionModel(_ClassifierModel):
    """1 where the probability of 1 is a half or more; raw: the probabilities of 0 and of 1.

    Of a row of features it makes ``prediction``, ``rawPrediction_0``, ``rawPrediction_1``. A
    model of ``OnlineLogisticRegression`` counts its versions in ``modelVersion`` and adds the
    column ``model_version_col``.

    >>> model = LogisticRegressionModel({"coefficient": [1.0, -1.0]})
    >>> model.transform([[2.0, 2.0], [0.0, 800.0]]).tolist()
    [[1.0, 0.5, 0.5], [0.0, 1.0, 0.0]]
    """

    kind = "flink_ml_logistic_regression"
    estimator = "LogisticRegression"
    data_names = ("coefficient", "modelVersion")
    defaults: ClassVar[Mapping[str, Any]] = {**_CLASSIFIER, "model_version_col": None}

    def __init__(self, model_data: ModelData, **options: Any) -> None:
        super().__init__({"modelVersion": 0, **model_data}, **options)

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        coefficient = one_number_per_feature({"coefficient": model_data["coefficient"]})
        return {**coefficient, "modelVersion": int(model_data["modelVersion"])}

    def _of_product(self, product: Floats) -> list[Floats]:
        probability = 1 - 1 / (1 + np.exp(product))
        return [np.where(product >= 0, 1.0, 0.0), 1 - probability, probability]

    def _version_column(self, rows: int) -> dict[str, pa.Array]:
        name = self.settings["model_version_col"]
        return {} if name is None else {name: pa.repeat(self.model_data["modelVersion"], rows)}


class LinearSVCModel(_ClassifierModel):
    """1 where features times coefficients reach ``threshold``; raw: the product and its negative.

    >>> LinearSVCModel({"coefficient": [0.5]}, threshold=1.0).transform([[2.0], [1.0]]).tolist()
    [[1.0, 1.0, -1.0], [0.0, 0.5, -0.5]]
    """

    kind = "flink_ml_linear_svc"
    estimator = "LinearSVC"
    defaults: ClassVar[Mapping[str, Any]] = {**_CLASSIFIER, "threshold": 0.0}

    def _of_product(self, product: Floats) -> list[Floats]:
        return [np.where(product >= self.settings["threshold"], 1.0, 0.0), product, -product]


class LinearRegressionModel(_LinearModel):
    """Features times coefficients.

    >>> LinearRegressionModel({"coefficient": [1.0, 2.0]}).transform([[2.0, 1.0]]).tolist()
    [4.0]
    """

    kind = "flink_ml_linear_regression"
    estimator = "LinearRegression"
    defaults: ClassVar[Mapping[str, Any]] = {
        "features_col": "features",
        "prediction_col": "prediction",
    }

    @property
    def width_out(self) -> int:
        return 1

    def names_out(self, names: Sequence[str]) -> list[str]:
        return [self.settings["prediction_col"]]

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        features = self._fitting(read_features(table, self.settings["features_col"]))
        return {self.settings["prediction_col"]: pa.array(self._results(features)[0])}
