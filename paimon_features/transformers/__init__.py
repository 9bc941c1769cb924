"""Transformers: learn from data, transform data, be stored by version and applied at reads.

>>> from paimon_features.transformers import StandardScaler
>>> StandardScaler().fit([[1.0], [3.0]]).transform([[5.0]])
[[3.0]]
"""

from paimon_features.transformers.base import FeatureTransformer, StoredTransformer
from paimon_features.transformers.categorical import OneHotEncoder
from paimon_features.transformers.fitted import FittedVersion
from paimon_features.transformers.normalizer import FeatureNormalizer
from paimon_features.transformers.numeric import MinMaxScaler, StandardScaler
from paimon_features.transformers.selector import FeatureSelector

__all__ = [
    "FeatureNormalizer",
    "FeatureSelector",
    "FeatureTransformer",
    "FittedVersion",
    "MinMaxScaler",
    "OneHotEncoder",
    "StandardScaler",
    "StoredTransformer",
]
