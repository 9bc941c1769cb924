"""The public names of the package; see ``paimon_features.core._lazy``."""

from paimon_features.integrations.feast.plugin.definitions import feast_objects as feast_objects
from paimon_features.integrations.feast.plugin.offline_store import (
    PaimonOfflineStore as PaimonOfflineStore,
)
from paimon_features.integrations.feast.plugin.offline_store import (
    PaimonOfflineStoreConfig as PaimonOfflineStoreConfig,
)
from paimon_features.integrations.feast.plugin.online_store import (
    PaimonOnlineStore as PaimonOnlineStore,
)
from paimon_features.integrations.feast.plugin.online_store import (
    PaimonOnlineStoreConfig as PaimonOnlineStoreConfig,
)
from paimon_features.integrations.feast.plugin.sources import (
    PaimonLoggingDestination as PaimonLoggingDestination,
)
from paimon_features.integrations.feast.plugin.sources import PaimonSource as PaimonSource
from paimon_features.integrations.feast.plugin.sources import (
    SavedDatasetPaimonStorage as SavedDatasetPaimonStorage,
)
