"""A Feast project on this store: two lines in ``feature_store.yaml``.

::

    online_store:  {type: paimon_features.feast_plugin.PaimonOnlineStore, project_path: ../shop}
    offline_store: {type: paimon_features.feast_plugin.PaimonOfflineStore, project_path: ../shop}

Feast is installed by whoever uses this (0.67, with its extra ``duckdb``); nothing else imports
this package.
"""

from paimon_features.feast_plugin.definitions import feast_objects
from paimon_features.feast_plugin.offline_store import (
    PaimonOfflineStore,
    PaimonOfflineStoreConfig,
)
from paimon_features.feast_plugin.online_store import PaimonOnlineStore, PaimonOnlineStoreConfig
from paimon_features.feast_plugin.sources import (
    PaimonLoggingDestination,
    PaimonSource,
    SavedDatasetPaimonStorage,
)

__all__ = [
    "PaimonLoggingDestination",
    "PaimonOfflineStore",
    "PaimonOfflineStoreConfig",
    "PaimonOnlineStore",
    "PaimonOnlineStoreConfig",
    "PaimonSource",
    "SavedDatasetPaimonStorage",
    "feast_objects",
]
