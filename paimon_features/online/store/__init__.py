"""The online store: Redis as a view of one snapshot of each tile table."""

from paimon_features.online.store.codec import RecordLayout, Records
from paimon_features.online.store.markers import Building, Marker, ViewState
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.online.store.opening import open_queue, open_store
from paimon_features.online.store.queue import MemoryQueue, Queue
from paimon_features.online.store.settings import OnlineSettings
from paimon_features.online.store.store import OnlineStore, StoreLease, Write

__all__ = [
    "Building",
    "Marker",
    "MemoryQueue",
    "MemoryStore",
    "OnlineSettings",
    "OnlineStore",
    "Queue",
    "RecordLayout",
    "Records",
    "StoreLease",
    "ViewState",
    "Write",
    "open_queue",
    "open_store",
]
