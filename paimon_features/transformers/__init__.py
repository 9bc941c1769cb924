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
from paimon_features.transformers.column_statistics import ColumnStatistics, MomentSums
from paimon_features.transformers.column_transformer import ColumnTransformer
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frequency_encoder import FrequencyEncoder
from paimon_features.transformers.hashing_encoder import HashingEncoder
from paimon_features.transformers.imputer import Imputer
from paimon_features.transformers.k_bins import KBinsDiscretizer
from paimon_features.transformers.normalizer import FeatureNormalizer
from paimon_features.transformers.one_hot import OneHotEncoder
from paimon_features.transformers.pipeline import Pipeline
from paimon_features.transformers.pipeline_steps import Frozen, Passthrough
from paimon_features.transformers.quantile_transformer import QuantileTransformer
from paimon_features.transformers.robust_scaler import RobustScaler
from paimon_features.transformers.scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from paimon_features.transformers.selector import FeatureSelector
from paimon_features.transformers.stateless import Clip, InteractionFeatures, LogTransform
from paimon_features.transformers.target_encoder import TargetEncoder

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
    "InteractionFeatures",
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
