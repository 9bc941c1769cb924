"""Feast: a project of Feast on this store, and the import of a repository of Feast.

Two lines in ``feature_store.yaml``:

::

    online_store:
        type: paimon_features.integrations.feast.PaimonOnlineStore
        project_path: ../shop
    offline_store:
        type: paimon_features.integrations.feast.PaimonOfflineStore
        project_path: ../shop

Feast is installed by whoever uses this (0.67, with its extra ``duckdb``); the names of
the plugin are imported when they are first used.
"""

from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
