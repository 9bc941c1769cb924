"""Flink ML's algorithms on the iteration runtime, with its parameters, defaults and numbers.

``fit`` gives a model (``paimon_features.transformers.flink_ml``) that is stored by version,
pinned and served like any fitted transformer. These are not the transformers of
``paimon_features.transformers``, which follow scikit-learn.

>>> from paimon_features.iteration.algorithms import KMeans
>>> model = KMeans(k=2).fit([[0.0], [1.0], [9.0]])
>>> sorted(model.model_data["centroids"].ravel().tolist())
[0.5, 9.0]
"""

from paimon_features.iteration.algorithms.column_estimators import (
    Imputer,
    Interaction,
    KBinsDiscretizer,
    OneHotEncoder,
    RobustScaler,
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
    EventTimeTumblingWindows,
    GlobalWindows,
    OnlineStandardScaler,
)
from paimon_features.iteration.algorithms.online_training import ModelVersions
from paimon_features.iteration.algorithms.scaler_estimators import (
    MaxAbsScaler,
    MinMaxScaler,
    StandardScaler,
)

__all__ = [
    "CountTumblingWindows",
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
    "RobustScaler",
    "StandardScaler",
]
