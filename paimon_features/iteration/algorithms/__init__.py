"""Flink ML's estimators on the iteration runtime, with Flink ML's names, parameters and results.

``fit`` returns a model of ``paimon_features.transformers.flink_ml``, which is stored by version,
pinned and served like any fitted transformer.

``StandardScaler``, ``OneHotEncoder`` and six more names also exist in
``paimon_features.transformers``, where they follow scikit-learn and return other numbers. A module
that uses both imports this package under a name that says which:

>>> from paimon_features.iteration import algorithms as flink_ml
>>> model = flink_ml.KMeans(k=2).fit([[0.0], [1.0], [9.0]])
>>> sorted(model.model_data["centroids"].ravel().tolist())
[0.5, 9.0]
"""

from paimon_features.iteration.algorithms.column_estimators import (
    Imputer,
    Interaction,
    KBinsDiscretizer,
    OneHotEncoder,
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
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)

__all__ = [
    "CountTumblingWindows",
    "EventTimeSessionWindows",
    "EventTimeTumblingWindows",
    "GlobalWindows",
    "Imputer",
    "Interaction",
    "KBinsDiscretizer",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "MaxAbsScaler",
    "MinMaxScaler",
    "ModelVersions",
    "OneHotEncoder",
    "OnlineKMeans",
    "OnlineLogisticRegression",
    "OnlineStandardScaler",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTumblingWindows",
    "RobustScaler",
    "StandardScaler",
    "TimedModelVersions",
]
