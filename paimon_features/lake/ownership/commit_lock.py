"""Commit to a table: hold its lock, and check its lease and its newest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paimon_features.lake.ownership.fence import held
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.storage.commit_guard import guarding
from paimon_features.lake.storage.object_path import ObjectPath
from paimon_features.lake.table_folders import (
    TableFolders,
    lease_folder,
    lock_path,
    stored_snapshot_ids,
)


@contextmanager
def commit_lock(lake: TableFolders, name: str, doing: str) -> Iterator[Callable[[], None]]:
    """Hold the commit lock of a table inside the ``with`` block.

    Yields a function to call immediately before the change becomes visible: where this process
    has acquired the table's lease, it checks that nobody has taken it over since, for
    example because the process was paused. Nobody can do that while the lock is held.

    Raises
    ------
    LeaseLostError
        If the lease was taken over; also from the function.
    TableError
        If another process holds the lock for longer than 60 s.
    """
    with locked(lock_path(lake, name), doing) as check_lock, _guarded(lake, name):
        fence = held.fence(str(lease_folder(lake, name)))

        def check() -> None:
            check_lock()
            if fence is not None:
                fence.check()

        if fence is not None:
            fence.check()
        yield check


@contextmanager
def _guarded(lake: TableFolders, name: str) -> Iterator[None]:
    """Where a lock can be taken over, or another one's commit cannot be overwritten, let no
    commit follow a snapshot of somebody else."""
    if lake.rest is None and not isinstance(lake.side_folder, ObjectPath):
        yield
        return
    with guarding(lake.path(name), max(stored_snapshot_ids(lake, name), default=0)):
        yield
