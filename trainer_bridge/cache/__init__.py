"""Prepared blocks kept for later epochs and other jobs: in memory, on disk, or computed again.

Nothing here knows a training framework or an order: a block is a run of rows of one snapshot,
so whatever shuffles, shards or batches them finds the same ones.

- ``fingerprint`` tells one preparation from another.
- ``files`` is the format of a block on disk: Arrow IPC with a checksum, mapped into memory.
- ``disk`` is a folder of them that jobs share.
- ``tiers`` puts memory over disk over computing.
"""

from trainer_bridge.cache.disk import DiskCache
from trainer_bridge.cache.fingerprint import fingerprint
from trainer_bridge.cache.tiers import BlockCache, CacheStats

__all__ = ["BlockCache", "CacheStats", "DiskCache", "fingerprint"]
