"""Snapshots of a table: commits, their times and users, and which have expired."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from paimon_features.core.errors import RequestError, SnapshotExpiredError, first_names
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.table_folders import stored_snapshot_ids

SnapshotRef = int | str
"""A snapshot's number, or ``number@commit``: a number alone can be used again."""

BATCH_IDENTIFIER = 2**63 - 1
"""The commit identifier of all batch commits."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit. ``kind`` is APPEND, COMPACT, OVERWRITE or ANALYZE.

    ``commit_identifier`` is, for a streaming Flink job, the checkpoint id.
    ``delta_records`` and ``total_records`` count rows of data files, before merging. ``commit``
    identifies the commit: unlike ``id``, it is never used again, neither after a rollback nor
    when the table is dropped and created again.
    """

    id: int
    kind: str
    commit_user: str
    commit_identifier: int
    time_ms: int
    total_records: int
    delta_records: int
    schema_id: int
    commit: str = ""
    watermark_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """``number@commit``: names this snapshot, and never a later one of the same number."""
        return f"{self.id}@{self.commit}"


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
        commit=_commit(raw),
        watermark_ms=raw.get("watermark"),
        properties=dict(raw.get("properties") or {}),
    )


def _read(lake: Lake, path: str, snapshot_id: int | None = None) -> Snapshot:
    """Return the snapshot in a file.

    Raises DamagedFileError for what is none, or of another number.
    """
    with metadata_damage(path, f"table {path.split('/')[-3]!r}"):
        parsed = _parse(lake.storage.read_text(path))
        if snapshot_id is not None and parsed.id != snapshot_id:
            raise ValueError(f"it contains snapshot {parsed.id}")
    return parsed


def _commit(raw: Mapping[str, Any]) -> str:
    # the names of manifest lists contain random numbers
    names = ("baseManifestList", "deltaManifestList", "commitUser", "commitIdentifier")
    parts = [raw["id"], raw["timeMillis"], *(raw.get(name) for name in names)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _folder(lake: Lake, name: str) -> str:
    lake.table(name)  # an unknown table is an error, not a table without snapshots
    return f"{lake.path(name)}/snapshot"


def snapshot_ids(lake: Lake, name: str) -> list[int]:
    """Return the ids of all retained snapshots, ascending."""
    lake.table(name)  # an unknown table is an error, not a table without snapshots
    return stored_snapshot_ids(lake, name)


def read_snapshot_file(lake: Lake, folder: str, snapshot_id: int) -> Snapshot | None:
    """Return the snapshot in a table's snapshot folder, None if its file does not exist."""
    try:
        return _read(lake, f"{folder}/snapshot-{snapshot_id}", snapshot_id)
    except FileNotFoundError:
        return None


def earliest_snapshot_id(lake: Lake, name: str) -> int | None:
    """Return the oldest retained snapshot (ignoring tags), None for an empty table."""
    ids = snapshot_ids(lake, name)
    return ids[0] if ids else None


def latest_snapshot(lake: Lake, name: str) -> Snapshot | None:
    """Return the newest snapshot, None for an empty table."""
    folder = _folder(lake, name)
    # the hint file may be outdated (rollback), so it is only the starting point
    try:
        hint = int(lake.storage.read_text(f"{folder}/LATEST"))
    except (FileNotFoundError, ValueError):  # the hint may also be damaged
        hint = 0
    if hint and not lake.storage.is_file(f"{folder}/snapshot-{hint + 1}"):
        candidate = read_snapshot_file(lake, folder, hint)
        if candidate is not None:
            return candidate
    for snapshot_id in reversed(snapshot_ids(lake, name)):
        candidate = read_snapshot_file(lake, folder, snapshot_id)
        if candidate is not None:
            return candidate
    return None


def tagged(lake: Lake, name: str) -> dict[str, Snapshot]:
    """Return all tags with their snapshots, which outlive expiry."""
    folder = f"{lake.path(name)}/tag"
    result = {}
    for entry in sorted(lake.storage.names(folder)):
        if entry.startswith("tag-"):
            with suppress(FileNotFoundError):
                result[entry.removeprefix("tag-")] = _read(lake, f"{folder}/{entry}")
    return result


def snapshot(lake: Lake, name: str, snapshot_id: int) -> Snapshot:
    """Return the snapshot with this id; a tag keeps it readable after it has expired.

    Raises
    ------
    SnapshotExpiredError
        If it has expired or never existed.
    """
    match = next(_of_number(lake, name, snapshot_id), None)
    if match is None:
        raise expired(lake, name, snapshot_id)
    return match


def _of_number(lake: Lake, name: str, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield the retained snapshot of this number, then those of tags."""
    retained = read_snapshot_file(lake, _folder(lake, name), snapshot_id)
    if retained is not None:
        yield retained
    yield from (s for s in tagged(lake, name).values() if s.id == snapshot_id)


def pinned(lake: Lake, name: str, ref: SnapshotRef) -> Snapshot:
    """Return the snapshot that somebody has pinned: a user, or an earlier run.

    Unlike ``snapshot``, which trusts that a number was found just now, it never returns another
    commit that has taken over the number.

    Raises
    ------
    SnapshotExpiredError
        If it is gone, or its number is that of another commit now; for a plain number also if the
        number has been used before, because it is unknown which of them is meant.
    RequestError
        For text that is not ``number@commit``.
    """
    snapshot_id, commit = split_ref(ref)
    newest = None
    for candidate in _of_number(lake, name, snapshot_id):
        if candidate.commit == commit if commit else not _removed(lake, name, snapshot_id):
            return candidate
        newest = newest or candidate
    if newest is None:
        raise expired(lake, name, snapshot_id)
    raise SnapshotExpiredError(
        f"table {name!r}: snapshot {ref} was pinned"
        + (", but" if commit else ", which is ambiguous:")
        + f" the snapshot of this number is now {newest.ref}, committed at "
        f"{newest.time_ms} ms{_removed(lake, name, snapshot_id)}. What was read before cannot "
        f"be read again; to read the current one, pin {newest.ref!r}, or pass a time"
    )


def ref_of(lake: Lake, name: str, snapshot_id: int) -> str:
    """Return ``number@commit`` of a number that was found just now; raises as ``snapshot`` does."""
    return snapshot(lake, name, snapshot_id).ref


def check_pin(lake: Lake, name: str, ref: SnapshotRef) -> None:
    """Raise SnapshotExpiredError if the number of a pin is that of another commit by now.

    For the end of a read by number; that the snapshot has expired meanwhile is no error.
    """
    snapshot_id, commit = split_ref(ref)
    candidates = list(_of_number(lake, name, snapshot_id)) if lake.exists(name) else []
    if commit is not None and candidates and all(s.commit != commit for s in candidates):
        pinned(lake, name, ref)


def split_ref(ref: SnapshotRef) -> tuple[int, str | None]:
    """Return the number and the commit of a reference, None for a plain number.

    >>> split_ref(12), split_ref("12@5b1c22d09a7e4f10")
    ((12, None), (12, '5b1c22d09a7e4f10'))

    Raises
    ------
    RequestError
        For any other text.
    """
    number, at, commit = str(ref).partition("@")
    if not number.isdecimal() or bool(at) != bool(commit):
        raise RequestError(f"snapshot {ref!r}: expected a number, or 'number@commit'")
    return int(number), commit or None


def _removed(lake: Lake, name: str, snapshot_id: int) -> str:
    """Return when the last snapshot of this number was removed, as the end of a phrase.

    Empty if never.
    """
    of_number = [r for r in table_history.removals(lake, name) if r.reuses(snapshot_id)]
    if not of_number:
        return ""
    before = f", and {len(of_number) - 1:,} times before" if len(of_number) > 1 else ""
    return f"; the table was {of_number[-1].how} at {of_number[-1].until_ms} ms{before}"


def expired(lake: Lake, name: str, snapshot_id: int) -> SnapshotExpiredError:
    """Return the error for a missing snapshot, listing the existing ones."""
    ids = snapshot_ids(lake, name)
    retained = f"it has {ids[0]} to {ids[-1]}" if ids else "it has none"
    tags = first_names([f"{s.id} ({tag})" for tag, s in tagged(lake, name).items()])
    return SnapshotExpiredError(
        f"table {name!r} has no snapshot {snapshot_id}; {retained}"
        + (f", and the tagged ones {tags}" if tags else "")
        + _removed(lake, name, snapshot_id)
        + ". Read a newer one; a consumer or a tag prevents expiry"
    )


def snapshots(lake: Lake, name: str, from_id: int | None = None) -> Iterator[Snapshot]:
    """Yield snapshots in ascending order, from ``from_id`` (inclusive) or the oldest.

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
        current = read_snapshot_file(lake, folder, snapshot_id) if snapshot_id == expected else None
        if current is None:
            raise expired(lake, name, expected)
        yield current
        expected += 1


def snapshot_as_of(lake: Lake, name: str, time_ms: int) -> Snapshot | None:
    """Return the newest snapshot committed at or before ``time_ms``.

    None if the table had no commit at that time.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot of that time has expired, or was removed by a rollback or by creating
        the table again.
    """
    folder = _folder(lake, name)
    for removal in table_history.removals(lake, name):
        if removal.covers(time_ms):
            raise SnapshotExpiredError(
                f"table {name!r}: what it contained at {time_ms} ms is gone; it was {removal.how} "
                f"at {removal.until_ms} ms. Use that time or a later one"
            )
    ids = snapshot_ids(lake, name)
    low, high = 0, len(ids)
    best: Snapshot | None = None
    while low < high:
        middle = (low + high) // 2
        candidate = read_snapshot_file(lake, folder, ids[middle])
        if candidate is None or candidate.time_ms <= time_ms:
            best, low = candidate or best, middle + 1
        else:
            high = middle
    if best is not None and (low == len(ids) or ids[low] == best.id + 1):
        return best
    if not ids or (low == 0 and ids[0] == 1):
        return None
    after = ids[min(low, len(ids) - 1)]
    # a tag counts only if nothing can have been committed between it and that time
    by_id = {s.id: s for s in tagged(lake, name).values()}
    before = by_id.get(after - 1)
    if before is not None and before.time_ms <= time_ms:
        return before
    tags = first_names([f"{s.id} of {s.time_ms} ms" for s in by_id.values()]) or "none"
    raise SnapshotExpiredError(
        f"table {name!r}: the snapshot of time {time_ms} ms has expired; the oldest is "
        f"{after}, committed at {snapshot(lake, name, after).time_ms} ms; tagged: {tags}. "
        "Use one of these snapshots or a later time"
    )
