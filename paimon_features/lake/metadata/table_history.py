"""The history of a table's name: when its table was created, and which snapshots were removed.

Snapshots are removed by dropping the table, or by rolling it back. Paimon numbers the snapshots of
a table that was created again from 1, and those after a rollback from there on. So a number, or a
time, does not say which table it belongs to: the record of removals does. It is stored next to the
tables, where it survives them, also in a warehouse that is only read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from paimon_features.core.documents.checksummed_json import add_checksum, stored_document
from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.errors import DamagedFileError, RecordLostError, UnknownNameError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.table_folders import SIDE_FOLDER, TableFolders, stored_snapshot_ids


@dataclass(frozen=True, slots=True)
class Removal:
    """Snapshots that a table once had.

    ``how`` is "dropped", "emptied", "replaced" or "rolled back to snapshot N". They were what the
    table contained from ``from_ms`` (inclusive) to ``until_ms`` (exclusive), UTC ms; ``first_id``
    and ``last_id`` (both inclusive) are their numbers, which later snapshots use again.
    """

    how: str
    from_ms: int
    until_ms: int
    first_id: int
    last_id: int

    def covers(self, time_ms: int) -> bool:
        """Return True if what the table contained at that time was removed."""
        return self.from_ms <= time_ms < self.until_ms

    def reuses(self, snapshot_id: int) -> bool:
        """Return True if a later snapshot can have this number."""
        return self.first_id <= snapshot_id <= self.last_id


def created_ms(lake: TableFolders, name: str) -> int:
    """Return when the table was created, UTC ms: a table that was created again has another time.

    Raises
    ------
    UnknownNameError
        If the table does not exist.
    """
    try:
        return _time_of(lake, f"{lake.path(name)}/schema/schema-0")
    except FileNotFoundError:
        raise UnknownNameError.of("table", name, lake.list()) from None


def removals(lake: TableFolders, name: str) -> tuple[Removal, ...]:
    """Return what was removed from the history of the tables of this name, oldest first.

    Raises
    ------
    RecordLostError
        If something was removed, and the record of it does not exist.
    DamagedFileError
        If the record is not what was written.
    """
    path = _record_path(lake, name)
    recorded = _load(lake, path)
    marked = _marked_count(lake, name)
    if len(recorded) < marked:
        recorded = _load(lake, path)  # it may have been written in between
    if len(recorded) < marked:
        problem = f"is older than the tables ({len(recorded)} of {marked} removals)"
        raise RecordLostError(
            f"table {name!r}: its record {path} "
            f"{problem if recorded else 'does not exist, but was written before'}. It "
            "contained which snapshots of the table were removed, so an earlier time or a "
            "snapshot's number could be read from another table. Restore it from the same "
            "backup as the tables, or, if nobody reads the past before now, accept the loss by "
            "'paimon-features check records --accept-loss'"
        )
    return recorded


def mark(lake: TableFolders, name: str) -> str:
    """Return a mark that readers store with a snapshot's number to resume; see ``continues``.

    Raises
    ------
    UnknownNameError
        If the table does not exist.
    """
    return f"{created_ms(lake, name)}.{len(removals(lake, name))}"


def continues(lake: TableFolders, name: str, mark: str, snapshot_id: int) -> bool:
    """Return True if the table still has the history that it had up to a snapshot, expired or not.

    It has not if the table was created again since the mark was taken, or rolled back to
    before that snapshot.
    """
    marked_ms, _, removal_count = mark.partition(".")
    if not lake.exists(name) or created_ms(lake, name) != int(marked_ms):
        return False
    return not any(r.reuses(snapshot_id) for r in removals(lake, name)[int(removal_count) :])


def record_removal(lake: TableFolders, name: str, removal: Removal) -> None:
    """Record that snapshots are removed, before they are. The caller holds the table's lock."""
    recorded = (*removals(lake, name), removal)  # must not begin a record again that was lost
    path = _record_path(lake, name)
    lake.storage.make_folder(path.rpartition("/")[0])
    document = {"removals": [asdict(entry) for entry in recorded]}
    # the number of removals is the number of writes
    lake.storage.write_json(path, add_checksum(document, path.rpartition("/")[2], len(recorded)))
    # the record first and its mark second: a crash in between loses nothing
    content = {"record": "removals", "name": name, "accepted": False, "serial": len(recorded)}
    path = _mark_path(lake, name)
    lake.storage.write_json(path, add_checksum(content, path.rpartition("/")[2]))


def record_drop(lake: TableFolders, name: str, how: str) -> None:
    """Record that all snapshots of a table are removed. The caller holds the table's lock."""
    ids = stored_snapshot_ids(lake, name)
    if ids:
        # before the first commit, whose time is known unless it has expired, nothing was there
        first = "snapshot/snapshot-1" if ids[0] == 1 else "schema/schema-0"
        from_ms = _time_of(lake, f"{lake.path(name)}/{first}")
        record_removal(lake, name, Removal(how, from_ms, now_ms(), 1, ids[-1]))


def _load(lake: TableFolders, path: str) -> tuple[Removal, ...]:
    """Return all removals in a record; empty if there is no record."""
    document = stored_document(lake.storage, path)
    if document is None:
        return ()
    try:
        fields = mapping(document.value, "removals")["removals"]
        return tuple(typed(Removal, removal) for removal in fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error}); restore it from a copy. It records which snapshots of "
            "the table were removed; without it an old snapshot number can name other rows"
        ) from error


def _record_path(lake: TableFolders, name: str) -> str:
    return f"{lake.warehouse}/{SIDE_FOLDER}/removals/{lake.database}.{name}.json"


def _mark_path(lake: TableFolders, name: str) -> str:
    # not in the table's folder: it survives the table
    return f"{lake.path(SIDE_FOLDER)}/removals-of.{name}.json"


def _marked_count(lake: TableFolders, name: str) -> int:
    """Return how much was removed at least; 0 if the loss of its record was accepted since."""
    path = _mark_path(lake, name)
    document = stored_document(lake.storage, path)
    if document is None:
        return 0
    with metadata_damage(path, f"table {name!r}"):
        content = mapping(document.value, "record")
        accepted = content.get("accepted", False)
        if type(accepted) is not bool or content["record"] != "removals":
            raise ValueError("expected a mark of removals")
        return 0 if accepted else int(content.get("serial", 1))


def _time_of(lake: TableFolders, file: str) -> int:
    """Return the time in a schema or snapshot file, UTC ms."""
    with metadata_damage(file, f"database {lake.database!r}"):
        return int(json.loads(lake.storage.read_text(file))["timeMillis"])
