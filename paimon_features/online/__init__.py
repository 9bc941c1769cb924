"""The online store: Redis as a view of one snapshot of each tile table."""

from paimon_features.online.codec import RecordLayout, Records
from paimon_features.online.markers import Building, Marker, ViewState
from paimon_features.online.memory_store import MemoryStore
from paimon_features.online.opening import open_queue, open_store
from paimon_features.online.queue import MemoryQueue, Queue
from paimon_features.online.settings import OnlineSettings
from paimon_features.online.store import OnlineStore, StoreLease, Write

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
