"""One shard of one view: the lake, the store and the buckets of a materializer."""

from __future__ import annotations

import re
from collections.abc import Callable

from paimon_features.core.errors import ConfigurationError, SnapshotExpiredError, TableError
from paimon_features.core.times.clock import Clock
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    consumers,
    delete_consumer,
    register_consumer,
)
from paimon_features.lake.reading.deltas import DataFile
from paimon_features.online.materialize.apply import BucketWriter
from paimon_features.online.materialize.epochs import Epochs
from paimon_features.online.materialize.known import KnownOfShard
from paimon_features.online.materialize.leases import LeaseLost, Leases
from paimon_features.online.materialize.materialize_progress import RebuildNeeded
from paimon_features.online.materialize.reading import MAX_ROWS
from paimon_features.online.materialize.snapshot_effect import needed_files
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.keys import BucketKeys, ViewKeys
from paimon_features.online.store.markers import EpochContent, Marker
from paimon_features.online.store.store import OnlineStore, StoreLease, Write


def consumer_name(project: str, view: str, shard: tuple[int, int] = (0, 1)) -> str:
    """Return the consumer by which a materializer retains snapshots of the tile table.

    >>> consumer_name("shop", "spend", (0, 4))
    'materialize-shop-spend-0-of-4'
    """
    return f"materialize-{project}-{view}-{shard[0]}-of-{shard[1]}"


class Shard:
    """The buckets ``b`` of a view with ``b % n == i`` for ``shard=(i, n)``, and their context.

    ``max_rows`` is the maximum number of rows of a bucket in memory, and ``followed`` is what
    markers note: whether this process continues after it has caught up.
    """

    def __init__(
        self,
        lake: Lake,
        project: str,
        view: CompiledView,
        store: OnlineStore,
        leases: Leases,
        clock: Clock,
        *,
        shard: tuple[int, int] = (0, 1),
        max_rows: int = MAX_ROWS,
    ) -> None:
        index, shards = shard
        if not 0 <= index < shards:
            raise ConfigurationError(f"shard {index}/{shards}: expected 0 <= i < n in i/n")
        self.lake = lake
        self.view = view
        self.store = store
        self.leases = leases
        self.clock = clock
        self.max_rows = max_rows
        self.followed = False
        self.layout = RecordLayout(view)
        self.keys = ViewKeys(project, view.name, store.key_prefix)
        self.epochs = Epochs(store, self.keys)
        self.known = KnownOfShard(self.layout, clock, self._files)
        self._index, self._shards = shard
        self._consumer = consumer_name(project, view.name, shard)
        prefix = re.escape(f"materialize-{project}-{view.name}-")
        self._other_cut = re.compile(rf"{prefix}\d+-of-(?!{shards}$)\d+")
        self._holds: tuple[str, int] | None = None

    def own_buckets(self, content: EpochContent) -> list[int]:
        """Return the buckets of this shard, ascending."""
        return list(range(self._index, content.buckets, self._shards))

    def take(self, keys: BucketKeys) -> StoreLease:
        """Acquire or renew the lease of a bucket; LeaseLost if another materializer owns it."""
        lease = self.leases.acquire(keys.lease)
        if not lease.mine:
            raise LeaseLost(lease.owner)
        return lease

    def alive(self, keys: BucketKeys) -> Callable[[], None]:
        """Return a function that renews the lease of a bucket, or raises LeaseLost."""
        return lambda: self.leases.keep(keys.lease)

    def writer(
        self, keys: BucketKeys, bucket: int, content: EpochContent, marker: Marker, run: str
    ) -> BucketWriter:
        """Return a writer of the bucket's records within the server's ``run``."""
        return BucketWriter(
            self.store,
            self.layout,
            keys,
            bucket=bucket,
            incarnation=content.incarnation,
            marker=marker,
            run=run,
            alive=self.alive(keys),
        )

    def move(self, keys: BucketKeys, before: Marker | None, after: Marker, run: str) -> bool:
        """Advance a bucket's marker, unless another process has changed it."""
        write = Write(keys.marker, None if before is None else before.to_bytes(), after.to_bytes())
        return self.store.compare_and_set_many([write], run)[0]

    def hold(self, table: str, snapshot: int) -> None:
        """Prevent ``snapshot`` and all later ones from expiring.

        Raises
        ------
        SnapshotExpiredError
            If it has expired.
        """
        register_consumer(self.lake, table, self._consumer, snapshot)
        self._release_other_cuts(table)
        self._holds = (table, snapshot)

    def move_hold(self, table: str, applied: int) -> None:
        """Release the snapshots before the applied one, which is retained to detect rollbacks.

        Raises
        ------
        RebuildNeeded
            If the consumer was deleted and the snapshot has expired since.
        """
        wanted = max(applied, 1)
        if self._holds == (table, wanted):
            return
        try:
            advance_consumer(self.lake, table, self._consumer, wanted)
        except TableError:
            try:
                register_consumer(self.lake, table, self._consumer, wanted)
            except SnapshotExpiredError as error:
                raise RebuildNeeded(str(error)) from error
        if self._holds is None:
            self._release_other_cuts(table)
        self._holds = (table, wanted)

    def _files(self, content: EpochContent, bucket: int, snapshot_id: int) -> list[DataFile]:
        needed = needed_files(self.lake, self.view, content.table, snapshot_id, [bucket])
        return needed[bucket]

    def _release_other_cuts(self, table: str) -> None:
        """Delete the consumers of materializers with another number of shards.

        They would retain all snapshots forever. A materializer that still runs registers its
        consumer again, or rebuilds.
        """
        for name in consumers(self.lake, table):
            if self._other_cut.fullmatch(name):
                delete_consumer(self.lake, table, name)
