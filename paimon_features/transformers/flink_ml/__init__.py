"""Models of Flink ML's algorithms, fitted by ``paimon_features.iteration.algorithms``.

They follow Flink ML: its model data, parameters, edge rules and numbers. The transformers of
``paimon_features.transformers`` follow scikit-learn, and neither can replace the other: here,
a ``StandardScalerModel`` divides by the deviation of n - 1, does not subtract the mean unless
set to, and makes 0 of a constant column.

>>> from paimon_features.transformers.flink_ml import MinMaxScalerModel
>>> MinMaxScalerModel({"minVector": [0.0], "maxVector": [200.0]}).transform([[50.0]]).tolist()
[0.25]
"""

from paimon_features.transformers.flink_ml.column_models import (
    ImputerModel,
    InteractionModel,
    KBinsDiscretizerModel,
    OneHotEncoderModel,
)
from paimon_features.transformers.flink_ml.kmeans_model import KMeansModel
from paimon_features.transformers.flink_ml.linear_models import (
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
)
from paimon_features.transformers.flink_ml.model import Model
from paimon_features.transformers.flink_ml.scaler_models import (
    MaxAbsScalerModel,
    MinMaxScalerModel,
    RobustScalerModel,
    StandardScalerModel,
)
from paimon_features.transformers.flink_ml.vectors import SparseRows, SparseVector

__all__ = [
    "ImputerModel",
    "InteractionModel",
    "KBinsDiscretizerModel",
    "KMeansModel",
    "LinearRegressionModel",
    "LinearSVCModel",
    "LogisticRegressionModel",
    "MaxAbsScalerModel",
    "MinMaxScalerModel",
    "Model",
    "OneHotEncoderModel",
    "RobustScalerModel",
    "SparseRows",
    "SparseVector",
    "StandardScalerModel",
]
