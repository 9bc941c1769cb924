"""The cut of a backup: everything that changes in place, at a moment without a commit.

Data files, manifests and snapshots are written once. What decides which of them count are small
files: the numbers of the newest snapshots, tags, consumers, schemas, the records of the side
folder, and the checkpoints of jobs. All of them are read, and read again; if nothing has changed in
between, they are what a power failure at that moment would have left, from which every job, writer
and reader is able to continue::

    events     41        42              43
    tiles         17            18            19
    ledger     a  a         b       b        b
    read 1st     |----|         |----|
    read 2nd          |----|         |----|
                  differs: again      equal: the cut is events 42, tiles 18, ledger b
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core.errors import TableError
from paimon_features.flink.checkpoints import METADATA
from paimon_features.lake import Lake
from paimon_features.lake.table_folders import SIDE_FOLDER, stored_snapshot_ids

TIMEOUT_S = 60.0
"""How long a moment without a commit is looked for."""
CACHES = ("locks", "merges", "rollups")
"""Folders of the side folder that are not copied: they are made again."""
_SMALL = ("schema", "tag", "consumer", SIDE_FOLDER)
"""Folders of a table whose files are part of the cut."""
MAX_CHECKPOINT_BYTES = 1 << 30
"""The most bytes of checkpoints, which are in memory; those of tile jobs have some kilobytes."""
HOLD = "backup"
"""The consumer by which a backup retains the snapshots that it copies."""


@dataclass(frozen=True)
class Cut:
    """``files`` are the small files with their contents, by path relative to the warehouse.

    ``snapshots`` are the numbers of the retained snapshots of each table. ``checkpoints`` are the
    files of the newest checkpoint of each job, by path relative to the state folder.
    """

    files: dict[str, bytes]
    snapshots: dict[str, tuple[int, ...]]
    checkpoints: dict[str, bytes]


def take_cut(lake: Lake, state_dir: Path, timeout_s: float = TIMEOUT_S) -> Cut:
    """Read the cut.

    Raises
    ------
    TableError
        If there was no moment without a commit.
    """
    deadline = time.monotonic() + timeout_s
    previous: Cut | None = None
    while True:
        try:
            current: Cut | None = _read(lake, state_dir)
        except FileNotFoundError:  # a checkpoint was replaced
            current = None
        if current is not None and current == previous:
            return current
        if time.monotonic() > deadline:
            raise TableError(
                f"something was committed all the time for {timeout_s:g} s; stop an ingest or a "
                "job for a moment, then repeat the backup"
            )
        previous = current


def _read(lake: Lake, state_dir: Path) -> Cut:
    warehouse = Path(lake.warehouse)
    database = warehouse / f"{lake.database}.db"
    files = dict(_contents(warehouse / SIDE_FOLDER, warehouse, CACHES, lake.database))
    files |= _contents(database / SIDE_FOLDER, warehouse)
    snapshots = {}
    for table in lake.list():
        for folder in _SMALL:
            files |= _contents(database / table / folder, warehouse)
        files.pop(f"{lake.database}.db/{table}/consumer/consumer-{HOLD}", None)
        snapshots[table] = tuple(stored_snapshot_ids(lake, table))
    return Cut(files, snapshots, dict(_checkpoints(state_dir)))


def _contents(
    folder: Path, base: Path, without: tuple[str, ...] = (), database: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder; heartbeats and temporary files are left out.

    With ``database`` only those records of the side folder that belong to it.
    """
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        parts = path.relative_to(folder).parts
        if parts[0] in without or path.name.startswith(".") or path.suffix == ".lock":
            continue
        if parts[0] == "leases" and path.name.startswith("beat-"):
            continue
        if database is not None and len(parts) > 1 and not parts[1].startswith(f"{database}."):
            continue
        try:
            if path.is_file():
                yield path.relative_to(base).as_posix(), path.read_bytes()
        except FileNotFoundError:
            continue  # deleted meanwhile: the second read shows whether that matters


def _checkpoints(state_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the newest complete checkpoint of each job, and what several share."""
    root = state_dir / "checkpoints"
    newest: dict[Path, Path] = {}
    for metadata in root.glob(f"**/{METADATA}"):
        folder = metadata.parent
        previous = newest.get(folder.parent)
        if previous is None or _time(previous) < _time(folder):
            newest[folder.parent] = folder
    total = 0
    for path in sorted(root.rglob("*")):
        of = next((p for p in path.parents if _is_checkpoint(p)), None)
        if path.is_file() and (of is None or newest.get(of.parent) == of):
            total += path.stat().st_size
            if total > MAX_CHECKPOINT_BYTES:
                raise TableError(
                    f"the newest checkpoints in {root} have more than "
                    f"{MAX_CHECKPOINT_BYTES >> 20} MiB, too much to be read in one moment; stop "
                    "the job with the largest one ('submit VIEW --stop'), then repeat the backup"
                )
            yield path.relative_to(state_dir).as_posix(), path.read_bytes()


def _is_checkpoint(folder: Path) -> bool:
    return folder.name.startswith(("chk-", "savepoint-"))


def _time(folder: Path) -> int:
    return (folder / METADATA).stat().st_mtime_ns
