"""A copy of a view's newest snapshot in a store of this process, which writes nothing to the lake.

For who looks at a project without an online store: values and explanations are then computed by the
code that serves them. The snapshot is not protected from expiry while it is read.
"""

from __future__ import annotations

from paimon_features.core.errors import TableError
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.online.materialize.leases import Leases
from paimon_features.online.materialize.materialize_progress import PassRecorder
from paimon_features.online.materialize.rebuild import build
from paimon_features.online.materialize.shard import Shard
from paimon_features.online.store.markers import EpochContent
from paimon_features.online.store.store import OnlineStore


class _ReadOnlyShard(Shard):
    """All buckets of a view; registers no consumer."""

    def hold(self, table: str, snapshot: int) -> None:
        """Do nothing: an expiry meanwhile is an error of the copy, which the caller may repeat."""


def copy_snapshot(
    lake: Lake, project: str, view: CompiledView, record: GenerationRecord, store: OnlineStore
) -> int:
    """Copy the view's newest snapshot into ``store`` and return its number, 0 for an empty table.

    Takes the memory of all records of the view, in a ``MemoryStore``; later calls replace them.

    Raises
    ------
    RequestError
        For a view that can only be read offline.
    TableError, SnapshotExpiredError
        If the table cannot be read.
    """
    view.check_online()
    shard = _ReadOnlyShard(lake, project, view, store, Leases(store, None), now_ms)
    content = EpochContent(
        record.table, record.generation, record.incarnation, view.online_fingerprint, record.buckets
    )
    done = build(
        shard, PassRecorder(view.name, lambda progress: None), content, "copied to be read"
    )
    if done.rebuilding is not None:
        raise TableError(f"feature view {view.name!r}: {done.rebuilding}")
    return done.applied_snapshot
