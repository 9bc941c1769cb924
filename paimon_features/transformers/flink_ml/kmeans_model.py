"""The model of k-means: the closest centroid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.flink_ml.model import Model, ModelData, check_finite
from paimon_features.transformers.flink_ml.vectors import read_features

MEASURES = ("euclidean", "manhattan", "cosine")


class KMeansModel(Model):
    """The number of the centroid that is closest, the first of equally close ones.

    ``distance_measure`` is ``euclidean``, ``manhattan`` or ``cosine``; with the last, a vector
    of zeros is refused. ``weights`` are how many points each centroid stands for.

    >>> model = KMeansModel({"centroids": [[0.0, 0.0], [9.0, 0.0]], "weights": [3.0, 3.0]})
    >>> model.transform([[1.0, 1.0], [8.0, 1.0], [4.5, 0.0]]).tolist()
    [0.0, 1.0, 0.0]
    """

    kind = "flink_ml_kmeans"
    estimator = "KMeans"
    data_names = ("centroids", "weights")
    defaults: ClassVar[Mapping[str, Any]] = {
        "features_col": "features",
        "prediction_col": "prediction",
        "distance_measure": "euclidean",
    }

    @property
    def width(self) -> int:
        return int(self.model_data["centroids"].shape[1])

    @property
    def width_out(self) -> int:
        return 1

    def names_out(self, names: Sequence[str]) -> list[str]:
        return [self.settings["prediction_col"]]

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        centroids = np.asarray(model_data["centroids"], np.float64)
        weights = np.asarray(model_data["weights"], np.float64)
        if centroids.ndim != 2 or weights.shape != (len(centroids),) or not centroids.size:
            raise TransformError(
                f"centroids of the shape {centroids.shape} and weights of {weights.shape}; "
                "expected (k, width) and (k,)"
            )
        if self.settings["distance_measure"] not in MEASURES:
            raise TransformError(
                f"distance_measure={self.settings['distance_measure']!r}; expected one of: "
                f"{', '.join(MEASURES)}"
            )
        check_finite("centroids", centroids)
        return {"centroids": centroids, "weights": weights}

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        measure = self.settings["distance_measure"]
        distances = [_distance(columns, c, measure) for c in self.model_data["centroids"].tolist()]
        unknown = np.isnan(distances[0])
        return [np.where(unknown, np.nan, np.argmin(distances, axis=0).astype(np.float64))]

    def _refused(self, columns: Sequence[Floats]) -> Any:
        if self.settings["distance_measure"] != "cosine":
            return None
        return np.logical_and.reduce([values == 0 for values in columns])

    def _why(self, row: Sequence[float]) -> str:
        return "the cosine distance of a vector of zeros is not defined"

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        features = self._fitting(read_features(table, self.settings["features_col"]))
        clusters = self._results(features)[0]
        return {
            self.settings["prediction_col"]: pa.array(clusters, from_pandas=True).cast(pa.int32())
        }


def _distance(columns: Sequence[Floats], centroid: Sequence[float], measure: str) -> Floats:
    """Return how far rows are from a centroid, added in the order of the features.

    Euclidean distances are left squared: the closest is the same.
    """
    total = np.zeros(len(columns[0]))
    if measure == "cosine":
        squares = np.zeros(len(columns[0]))
        for values, place in zip(columns, centroid, strict=True):
            total += values * place
            squares += values * values
        length = math.sqrt(sum(place * place for place in centroid))
        out: Floats = 1 - total / np.sqrt(squares) / length
        return out
    for values, place in zip(columns, centroid, strict=True):
        away = values - place
        total += np.abs(away) if measure == "manhattan" else away * away
    return total
