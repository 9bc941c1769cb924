"""Flink ML's algorithms on the iteration runtime, with its parameters, defaults and numbers.

``fit`` gives a model (``paimon_features.transformers.flink_ml``) that is stored by version,
pinned and served like any fitted transformer. These are not the transformers of
``paimon_features.transformers``, which follow scikit-learn.

>>> from jobs.iteration.algorithms import KMeans
>>> model = KMeans(k=2).fit([[0.0], [1.0], [9.0]])
>>> sorted(model.model_data["centroids"].ravel().tolist())
[0.5, 9.0]
"""

from jobs.iteration.algorithms.columns import (
    Imputer,
    Interaction,
    KBinsDiscretizer,
    OneHotEncoder,
    RobustScaler,
)
from jobs.iteration.algorithms.kmeans import KMeans
from jobs.iteration.algorithms.linear import LinearRegression, LinearSVC, LogisticRegression
from jobs.iteration.algorithms.online import ModelVersions
from jobs.iteration.algorithms.online_models import OnlineKMeans, OnlineLogisticRegression
from jobs.iteration.algorithms.online_scaler import (
    CountTumblingWindows,
    EventTimeTumblingWindows,
    GlobalWindows,
    OnlineStandardScaler,
)
from jobs.iteration.algorithms.scalers import MaxAbsScaler, MinMaxScaler, StandardScaler

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
