"""Cache of prepared blocks across epochs and jobs: in memory, on disk, or recomputed.

Independent of training frameworks and of the row order: a block is a contiguous range of rows
of one snapshot, so every way of shuffling, sharding or batching shares the same cached blocks.

- ``fingerprint`` identifies what a function computes.
- ``block_files`` is the on-disk format of a block: Arrow IPC with a checksum, memory-mapped.
- ``disk`` is a folder of blocks shared by jobs.
- ``tiers`` looks a block up in memory, then on disk, and computes it on a miss.
"""

from trainer_bridge.cache.disk import DiskCache
from trainer_bridge.cache.fingerprint import fingerprint
from trainer_bridge.cache.tiers import BlockCache, CacheStats

__all__ = ["BlockCache", "CacheStats", "DiskCache", "fingerprint"]
