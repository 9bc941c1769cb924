"""Manifests, each compared with what its list says of it while it is read.

The rows that a snapshot counts do not show that a manifest of another commit is in the place of one
of its own: commits of one writer often have the same number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from paimon_features.core.errors import DamagedFileError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import expired, tagged
from paimon_features.lake.metadata_damage import (
    REMEDY,
    check_entries,
    check_manifest,
    check_rows,
    metadata_damage,
)


def read_entries(
    lake: Lake,
    name: str,
    raw: Any,
    *,
    delta: bool = False,
    statistics: bool = False,
    keep: Callable[[int, int], bool] | None = None,
    paths: list[str] | None = None,
) -> list[Any]:
    """Return the entries of a snapshot's live files, or of its delta.

    ``keep`` takes bucket and number of buckets, and leaves files out, whose rows are not verified
    then. The ``paths`` of the files that are read are added to that list.

    Raises
    ------
    DamagedFileError
        If a manifest or a list is not what was written.
    FileNotFoundError
        If it has expired.
    """
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    table = lake.table(name)
    lists = ManifestListManager(table)
    listed = [(raw.delta_manifest_list, raw.delta_manifest_list_size)]
    if not delta:
        listed.append((raw.base_manifest_list, raw.base_manifest_list_size))
    for file, size in listed:
        _check_size(lake, f"{lake.path(name)}/manifest/{file}", size)
    manifests = lists.read_delta(raw) if delta else lists.read_all(raw)
    if paths is not None:
        names = [*(file for file, _ in listed), *(manifest.file_name for manifest in manifests)]
        paths += [f"{lake.path(name)}/manifest/{file}" for file in names]
    files = _verified()(lake, name, table, manifests)
    if delta:
        entries = [entry for m in manifests for entry in files.read(m.file_name)]
    else:
        entries = files.read_entries_parallel(
            manifests, max_workers=2, drop_stats=not statistics, early_entry_filter=keep
        )
    if keep is None:
        check_rows(name, raw, entries, delta)
    return entries


def check_manifests(lake: Lake, name: str, snapshot_id: int) -> None:
    """Raise DamagedFileError if a snapshot's manifests do not have the rows that it counts.

    For plans that leave files out, whose rows do not show it.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot or one of its manifests has expired.
    """
    raw = raw_snapshot(lake, name, snapshot_id)
    try:
        with manifest_damage(lake, name, snapshot_id):
            read_entries(lake, name, raw)
    except FileNotFoundError as error:
        raise expired(lake, name, snapshot_id) from error


def manifest_damage(lake: Lake, name: str, snapshot_id: int) -> AbstractContextManager[None]:
    """Raise what damaged manifests make pypaimon raise as DamagedFileError."""
    subject = f"table {name!r}, snapshot {snapshot_id}"
    return metadata_damage(f"a manifest in {lake.path(name)}/manifest", subject)


def raw_snapshot(lake: Lake, name: str, snapshot_id: int) -> Any:
    """Return pypaimon's description of a snapshot.

    Raises
    ------
    SnapshotExpiredError, DamagedFileError
        If it is gone, or its file is not what was written.
    """
    table = lake.table(name)
    with metadata_damage(f"{lake.path(name)}/snapshot/snapshot-{snapshot_id}", f"table {name!r}"):
        raw = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
    if raw is None:
        for tag, described in tagged(lake, name).items():
            if described.id == snapshot_id:
                with metadata_damage(f"{lake.path(name)}/tag/tag-{tag}", f"table {name!r}"):
                    return table.tag_manager().get_or_throw(tag).trim_to_snapshot()
        raise expired(lake, name, snapshot_id)
    return raw


@functools.cache
def _verified() -> type[Any]:
    """Return the class, made when it is needed: pypaimon takes a second to import."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager

    class Verified(ManifestFileManager):  # type: ignore[misc]
        """Reads manifests of some lists, and verifies those that it reads completely."""

        def __init__(self, lake: Lake, name: str, table: Any, manifests: list[Any]) -> None:
            super().__init__(table)
            self._lake, self._name = lake, name
            self._listed = {manifest.file_name: manifest for manifest in manifests}

        def read(self, manifest_file_name: str, *args: Any, **options: Any) -> list[Any]:
            # pypaimon's releases differ in the filters of this method: all of them are passed on
            entries: list[Any] = super().read(manifest_file_name, *args, **options)
            path = f"{self._lake.path(self._name)}/manifest/{manifest_file_name}"
            complete = options.get("early_entry_filter") is None
            listed = self._listed[manifest_file_name]
            check_entries(self._lake.path(self._name), entries)
            if complete:
                check_manifest(self._lake.storage, path, listed, entries)
            else:
                _check_size(self._lake, path, listed.file_size)
            return entries

    return Verified


def _check_size(lake: Lake, path: str, expected: int | None) -> None:
    size = lake.storage.size(path)
    if expected is not None and size != expected:
        raise DamagedFileError(
            f"{path} is damaged: it has {size} bytes; {expected} were written. {REMEDY}"
        )
