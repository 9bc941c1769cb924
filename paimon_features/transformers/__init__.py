"""Transformers: learn from data, transform data, be stored by version and applied at reads.

>>> from paimon_features.transformers import StandardScaler
>>> StandardScaler().fit([[1.0], [3.0]]).transform([[5.0]])
[[3.0]]
"""

from paimon_features.transformers import flink_ml as flink_ml
from paimon_features.transformers.base import (
    FeatureTransformer,
    StoredTransformer,
    new_transformer,
)
from paimon_features.transformers.bins import KBinsDiscretizer
from paimon_features.transformers.categorical import OneHotEncoder
from paimon_features.transformers.column_statistics import ColumnStatistics, MomentSums
from paimon_features.transformers.compose import ColumnTransformer
from paimon_features.transformers.declared import Clip, Interaction, LogTransform
from paimon_features.transformers.fitted import FittedVersion
from paimon_features.transformers.frequency import FrequencyEncoder
from paimon_features.transformers.hashing import HashingEncoder
from paimon_features.transformers.imputer import Imputer
from paimon_features.transformers.normalizer import FeatureNormalizer
from paimon_features.transformers.numeric import MaxAbsScaler, MinMaxScaler, StandardScaler
from paimon_features.transformers.pipeline import Pipeline
from paimon_features.transformers.quantile import QuantileTransformer
from paimon_features.transformers.robust import RobustScaler
from paimon_features.transformers.selector import FeatureSelector
from paimon_features.transformers.steps import Frozen, Passthrough
from paimon_features.transformers.target import TargetEncoder

__all__ = [
    "Clip",
    "ColumnStatistics",
    "ColumnTransformer",
    "FeatureNormalizer",
    "FeatureSelector",
    "FeatureTransformer",
    "FittedVersion",
    "FrequencyEncoder",
    "Frozen",
    "HashingEncoder",
    "Imputer",
    "Interaction",
    "KBinsDiscretizer",
    "LogTransform",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MomentSums",
    "OneHotEncoder",
    "Passthrough",
    "Pipeline",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
    "StoredTransformer",
    "TargetEncoder",
    "new_transformer",
]
