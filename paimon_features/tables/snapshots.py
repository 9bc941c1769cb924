"""Snapshots of a table: commits, their times and users, and which have expired."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from paimon_features.errors import SnapshotExpiredError
from paimon_features.tables.catalog import Lake

_SNAPSHOT_FILE = re.compile(r"snapshot-(\d+)")

BATCH_IDENTIFIER = 2**63 - 1
"""The commit identifier of all batch commits."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit. ``kind`` is APPEND, COMPACT, OVERWRITE or ANALYZE.

    ``commit_identifier`` is, for a streaming Flink job, the checkpoint id.
    ``delta_records`` and ``total_records`` count rows of data files, before merging.
    """

    id: int
    kind: str
    commit_user: str
    commit_identifier: int
    time_ms: int
    total_records: int
    delta_records: int
    schema_id: int
    watermark_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def commit_kind(self) -> str:
        return self.kind


def _parse(text: str) -> Snapshot:
    raw: dict[str, Any] = json.loads(text)
    return Snapshot(
        id=int(raw["id"]),
        kind=str(raw["commitKind"]),
        commit_user=str(raw["commitUser"]),
        commit_identifier=int(raw["commitIdentifier"]),
        time_ms=int(raw["timeMillis"]),
        total_records=int(raw.get("totalRecordCount") or 0),
        delta_records=int(raw.get("deltaRecordCount") or 0),
        schema_id=int(raw["schemaId"]),
        watermark_ms=raw.get("watermark"),
        properties=dict(raw.get("properties") or {}),
    )


def _folder(lake: Lake, name: str) -> str:
    lake.table(name)  # an unknown table is an error, not a table without snapshots
    return f"{lake.path(name)}/snapshot"


def snapshot_ids(lake: Lake, name: str) -> list[int]:
    """The ids of all retained snapshots, ascending."""
    entries = lake.storage.names(_folder(lake, name))
    found = (_SNAPSHOT_FILE.fullmatch(entry) for entry in entries)
    return sorted(int(match[1]) for match in found if match)


def read_snapshot_file(lake: Lake, folder: str, snapshot_id: int) -> Snapshot | None:
    """The snapshot in a table's snapshot folder, None if its file does not exist."""
    try:
        return _parse(lake.storage.read_text(f"{folder}/snapshot-{snapshot_id}"))
    except FileNotFoundError:
        return None


def earliest_snapshot_id(lake: Lake, name: str) -> int | None:
    """The oldest retained snapshot (ignoring tags), None for an empty table."""
    ids = snapshot_ids(lake, name)
    return ids[0] if ids else None


def latest_snapshot(lake: Lake, name: str) -> Snapshot | None:
    """The newest snapshot, None for an empty table."""
    folder = _folder(lake, name)
    # the hint file may be outdated (rollback), so it is only the starting point
    try:
        hint = int(lake.storage.read_text(f"{folder}/LATEST"))
    except (FileNotFoundError, ValueError):
        hint = 0
    if hint and not lake.storage.is_file(f"{folder}/snapshot-{hint + 1}"):
        found = read_snapshot_file(lake, folder, hint)
        if found is not None:
            return found
    for snapshot_id in reversed(snapshot_ids(lake, name)):
        found = read_snapshot_file(lake, folder, snapshot_id)
        if found is not None:
            return found
    return None


def tagged(lake: Lake, name: str) -> dict[str, Snapshot]:
    """All tags with their snapshots, which outlive expiry."""
    folder = f"{lake.path(name)}/tag"
    result = {}
    for entry in sorted(lake.storage.names(folder)):
        if entry.startswith("tag-"):
            with suppress(FileNotFoundError):
                text = lake.storage.read_text(f"{folder}/{entry}")
                result[entry.removeprefix("tag-")] = _parse(text)
    return result


def snapshot(lake: Lake, name: str, snapshot_id: int) -> Snapshot:
    """The snapshot with this id; a tag keeps it readable after it has expired.

    Raises
    ------
    SnapshotExpiredError
        If it has expired or never existed.
    """
    found = read_snapshot_file(lake, _folder(lake, name), snapshot_id)
    if found is None:
        found = next((s for s in tagged(lake, name).values() if s.id == snapshot_id), None)
    if found is None:
        raise expired(lake, name, snapshot_id)
    return found


def expired(lake: Lake, name: str, snapshot_id: int) -> SnapshotExpiredError:
    """The error for a missing snapshot, listing the existing ones."""
    ids = snapshot_ids(lake, name)
    there = f"it has {ids[0]} to {ids[-1]}" if ids else "it has none"
    tags = ", ".join(f"{s.id} ({tag})" for tag, s in tagged(lake, name).items())
    return SnapshotExpiredError(
        f"table {name!r} has no snapshot {snapshot_id}; {there}"
        + (f", and the tagged ones {tags}" if tags else "")
        + ". Read a newer one; a consumer or a tag prevents expiry"
    )


def snapshots(lake: Lake, name: str, from_id: int | None = None) -> Iterator[Snapshot]:
    """Snapshots in ascending order, from ``from_id`` (inclusive) or the oldest to the newest.

    Empty if ``from_id`` is the next id. A snapshot that expires during the iteration raises, too:
    none is skipped silently.

    Raises
    ------
    SnapshotExpiredError
        If ``from_id`` has expired, or lies beyond the next snapshot (the table was rolled back).
    """
    ids = snapshot_ids(lake, name)
    if from_id is not None:
        following = ids[-1] + 1 if ids else 1
        if from_id == following:
            return
        if from_id not in ids:
            raise expired(lake, name, from_id)
        ids = ids[ids.index(from_id) :]
    folder = _folder(lake, name)
    expected = ids[0] if ids else 0
    for snapshot_id in ids:
        found = read_snapshot_file(lake, folder, snapshot_id) if snapshot_id == expected else None
        if found is None:
            raise expired(lake, name, expected)
        yield found
        expected += 1


def snapshot_as_of(lake: Lake, name: str, time_ms: int) -> Snapshot | None:
    """The newest snapshot committed at or before ``time_ms``.

    None if the table had no commit at that time.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot of that time has expired.
    """
    folder = _folder(lake, name)
    ids = snapshot_ids(lake, name)
    low, high = 0, len(ids)
    best: Snapshot | None = None
    while low < high:
        middle = (low + high) // 2
        found = read_snapshot_file(lake, folder, ids[middle])
        if found is None or found.time_ms <= time_ms:
            best, low = found or best, middle + 1
        else:
            high = middle
    if best is not None:
        return best
    if not ids or ids[0] == 1:
        return None
    # a tag counts only if nothing can have been committed between it and that time
    by_id = {s.id: s for s in tagged(lake, name).values()}
    before = by_id.get(ids[0] - 1)
    if before is not None and before.time_ms <= time_ms:
        return before
    tags = ", ".join(f"{s.id} of {s.time_ms} ms" for s in by_id.values()) or "none"
    raise SnapshotExpiredError(
        f"table {name!r}: the snapshot of time {time_ms} ms has expired; the oldest is "
        f"{ids[0]}, committed at {snapshot(lake, name, ids[0]).time_ms} ms; tagged: {tags}. "
        "Use one of these snapshots or a later time"
    )
