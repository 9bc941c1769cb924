"""Flink ML's estimators on the iteration runtime, with Flink ML's names, parameters and results.

``fit`` returns a model of ``paimon_features.transformers.flink_ml``, which is stored by version,
pinned and served like any fitted transformer.

The names are Flink ML's. ``StandardScaler``, ``OneHotEncoder`` and six more end in ``Stage`` here:
``paimon_features.transformers`` has the names without it, where they follow scikit-learn and
return other numbers.

>>> from paimon_features.iteration.algorithms import KMeans
>>> model = KMeans(k=2).fit([[0.0], [1.0], [9.0]])
>>> sorted(model.model_data["centroids"].ravel().tolist())
[0.5, 9.0]
"""

from paimon_features.iteration.algorithms.column_estimators import (
    ImputerStage,
    InteractionStage,
    KBinsDiscretizerStage,
    OneHotEncoderStage,
)
from paimon_features.iteration.algorithms.kmeans import KMeans
from paimon_features.iteration.algorithms.linear_estimators import (
    LinearRegression,
    LinearSVC,
    LogisticRegression,
)
from paimon_features.iteration.algorithms.online_estimators import (
    OnlineKMeans,
    OnlineLogisticRegression,
)
from paimon_features.iteration.algorithms.online_scaler import (
    CountTumblingWindows,
    EventTimeSessionWindows,
    EventTimeTumblingWindows,
    GlobalWindows,
    OnlineStandardScaler,
    ProcessingTimeSessionWindows,
    ProcessingTimeTumblingWindows,
    TimedModelVersions,
)
from paimon_features.iteration.algorithms.online_training import ModelVersions
from paimon_features.iteration.algorithms.scaler_estimators import (
    MaxAbsScalerStage,
    MinMaxScalerStage,
    RobustScalerStage,
    StandardScalerStage,
)

__all__ = [
    "CountTumblingWindows",
    "EventTimeSessionWindows",
    "EventTimeTumblingWindows",
    "GlobalWindows",
    "ImputerStage",
    "InteractionStage",
    "KBinsDiscretizerStage",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "MaxAbsScalerStage",
    "MinMaxScalerStage",
    "ModelVersions",
    "OneHotEncoderStage",
    "OnlineKMeans",
    "OnlineLogisticRegression",
    "OnlineStandardScaler",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTumblingWindows",
    "RobustScalerStage",
    "StandardScalerStage",
    "TimedModelVersions",
]
