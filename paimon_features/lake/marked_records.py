"""Records: files of the side folder that tables depend on, and whose loss is detected.

A record that is missing must not read as one that was never written: the files of a source would be
ingested twice. So each record has a mark in the folder of its table, which is copied, restored and
dropped with the table::

    <warehouse>/_paimon_features/ingests/features.sales.json          the record
    <database>.db/events_sales/_paimon_features/ingests.sales.json    its mark

The record is written first and the mark second: a crash in between loses nothing. Both have the
number of the record's writes: a record that was restored from an earlier backup than its table has
a smaller one than its mark, and counts as lost. A record is newer than its mark if the process died
in between, or if the tables were restored from an earlier backup than the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

from paimon_features.core.documents.checksummed_json import (
    Document,
    add_checksum,
    read_document,
    stored_document,
)
from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import DamagedFileError, RecordLostError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.storage.json_files import write_json
from paimon_features.lake.storage.object_path import SidePath
from paimon_features.lake.table_folders import SIDE_FOLDER

_REMOVALS_OF = "removals-of."
"""The name of the marks of removals, which the catalog writes; they survive their table."""
_RESTORE = "restore it from the same backup as the tables"
_ACCEPT = "accept the loss by 'paimon-features check records --accept-loss'"

LOSSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ingests": (
            "which files were ingested, so they could be ingested twice",
            f"{_RESTORE}, or name the files that were ingested: "
            "'paimon-features ingest files SOURCE FILES --mark-ingested'",
        ),
        "commits": (
            "the last commit of a writer whose snapshots have expired, so a repeated commit "
            "would add its rows twice",
            f"{_RESTORE}, or, if its writer does not repeat a commit, {_ACCEPT}",
        ),
        "generations": (
            "which generation is active, its job and its rollbacks, so tiles could be computed "
            "twice",
            f"{_RESTORE}, or delete the tables' folders and run 'paimon-features apply' and "
            "'backfill', which compute the tiles from the events",
        ),
        "leases": (
            "which process or job owns the table, so two owners could commit",
            f"{_RESTORE}, or, if no process or job writes the table, "
            "'paimon-features jobs --release TABLE'",
        ),
        "removals": (
            "which snapshots of the table were removed, so an earlier time or a snapshot's number "
            "could be read from another table",
            f"{_RESTORE}, or, if nobody reads the past before now, {_ACCEPT}",
        ),
        "scores": (
            "the scores that a run reads at a step, so a resumed run could read others",
            f"{_RESTORE}, or start a run with another run_id, or {_ACCEPT}",
        ),
    }
)
"""Kind (a folder of the side folder) -> what is lost with a record, and what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON file ``<kind>/<file>`` of the side folder that ``table`` depends on, or a folder.

    ``name`` is the name of its mark, unique among those of the kind and table. A table of None
    marks it in the database's folder.
    """

    lake: Lake
    kind: str
    file: str
    name: str
    table: str | None

    @property
    def path(self) -> SidePath:
        return self.lake.side_folder / self.kind / self.file

    def exists(self) -> bool:
        """Return True if it exists: a file, or a folder that is not empty."""
        if self.kind == "removals":  # a file of the warehouse, also where that is remote
            folder = f"{self.lake.warehouse}/{SIDE_FOLDER}/{self.kind}"
            return self.lake.storage.is_file(f"{folder}/{self.file}")
        return self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir()))

    def read(self) -> Any | None:
        """Return its content, None if it was never written.

        Raises
        ------
        RecordLostError
            If it was written, and does not exist or is older than its mark.
        DamagedFileError
            If it is not what was written.
        """
        document, marked = self._document(), self._marked_serial()
        if _serial(document) < marked:
            document = self._document()  # it may have been written in between
            if _serial(document) < marked:
                raise self.error()
        return None if document is None else document.value

    def require(self) -> None:
        """Raise RecordLostError if it was written, and does not exist or is older than its mark."""
        if self.is_lost():
            raise self.error()

    def is_lost(self) -> bool:
        """Return True if it was written, and does not exist or is older than its mark."""
        marked = self._marked_serial()  # before the record, which may be written in between
        return self._current_serial() < marked

    def write(self, value: Mapping[str, Any]) -> None:
        """Replace its content, and mark it. The caller has read it, or knows what it contained."""
        write_json(self.path, value, self._marked_serial())
        self.mark()

    def mark(self) -> None:
        """Mark it as written, unless the table does not exist yet."""
        if self.table is not None and not self.lake.exists(self.table):
            return
        content = {"record": f"{self.kind}/{self.file}", "name": self.name, "accepted": False}
        before = _content(self.lake, self._mark_path)
        # never a smaller number: an older record must not pass for the newest one
        content["serial"] = max(self._current_serial(), self._serial_of_mark(before))
        if before != content:
            _write(self.lake, self._mark_path, content)

    def is_marked(self) -> bool:
        """Return True if it was written, and its loss was not accepted since."""
        return _is_mark(_content(self.lake, self._mark_path))

    def accept_loss(self) -> None:
        """Treat it as never written from now on."""
        content = _content(self.lake, self._mark_path)
        if content is not None:
            _write(self.lake, self._mark_path, {**content, "accepted": True})

    def _document(self) -> Document | None:
        if self.kind != "removals":
            return read_document(self.path)
        path = f"{self.lake.warehouse}/{SIDE_FOLDER}/{self.kind}/{self.file}"
        return stored_document(self.lake.storage, path)

    def _current_serial(self) -> int:
        """Return the number of its writes; -1 if it does not exist. A folder has none."""
        if self.kind != "removals" and self.path.is_dir():
            return 0 if self.exists() else -1
        return _serial(self._document())

    def _marked_serial(self) -> int:
        return self._serial_of_mark(_content(self.lake, self._mark_path))

    def _serial_of_mark(self, content: Mapping[str, Any] | None) -> int:
        """Return the number of its writes by its mark.

        -1 without one, or if its loss was accepted.
        """
        if content is None or content.get("accepted", self.kind != "removals"):
            return -1
        return int(content.get("serial", 0))

    def error(self) -> RecordLostError:
        """Return the error that says what is lost, and what to do."""
        lost, remedy = LOSSES[self.kind]
        owner = f"table {self.table!r}" if self.table else f"database {self.lake.database!r}"
        problem = "does not exist, but was written before"
        if self.exists():
            problem = "is older than the table that depends on it"
        return RecordLostError(
            f"{owner}: its record {self.path} {problem}: the folder "
            f"{self.lake.side_folder} was lost or not restored with the tables. It contained "
            f"{lost}: {remedy}"
        )

    @property
    def _mark_path(self) -> str:
        if self.kind == "removals":
            return f"{_marks(self.lake, None)}/{_REMOVALS_OF}{self.name}.json"
        return f"{_marks(self.lake, self.table)}/{self.kind}.{self.name}.json"


def lost_records(lake: Lake) -> list[Record]:
    """Return the records of all tables that were written and do not exist, or are older, in order.

    Those that are damaged, or whose mark is, are left out: ``scrub`` finds them.
    """
    tables: list[str | None] = [None, *lake.list()]
    return [record for table in tables for record in _marked(lake, table) if _is_lost(record)]


def _is_lost(record: Record) -> bool:
    try:
        return record.is_lost()
    except DamagedFileError:
        return False


def record_names(lake: Lake, kind: str, table: str) -> set[str]:
    """Return the names of the records of a kind that were written for a table."""
    return {record.name for record in _marked(lake, table) if record.kind == kind}


def _marked(lake: Lake, table: str | None) -> Iterator[Record]:
    folder = _marks(lake, table)
    for entry in sorted(lake.storage.names(folder)):
        if not entry.startswith(_REMOVALS_OF) and entry.partition(".")[0] not in LOSSES:
            continue  # the CRCs of schemas
        try:
            content = _content(lake, f"{folder}/{entry}")
        except DamagedFileError:
            continue
        if entry.startswith(_REMOVALS_OF):
            name = entry.removeprefix(_REMOVALS_OF).removesuffix(".json")
            if content is not None and not content.get("accepted", False):
                yield Record(lake, "removals", f"{lake.database}.{name}.json", name, None)
        elif _is_mark(content):
            kind, _, file = content["record"].partition("/")
            yield Record(lake, kind, file, content["name"], table)


def _marks(lake: Lake, table: str | None) -> str:
    return lake.path(SIDE_FOLDER) if table is None else f"{lake.path(table)}/{SIDE_FOLDER}"


def _content(lake: Lake, path: str) -> Mapping[str, Any] | None:
    """Return what a mark says, None if there is none.

    DamagedFileError if it is not what was written.
    """
    mark = stored_document(lake.storage, path)
    if mark is None:
        return None
    with metadata_damage(path, "the mark of a record next to the tables"):
        content = mapping(mark.value, "record")
        kinds: list[tuple[str, type[Any]]] = [("record", str)]
        if not path.rpartition("/")[2].startswith(_REMOVALS_OF):  # earlier ones had no more
            kinds += [("name", str), ("accepted", bool)]
        for name, kind in kinds:
            if type(content.get(name)) is not kind:
                raise ValueError(f"{name}={str(content.get(name))[:80]!r}")
        return content


def _write(lake: Lake, path: str, content: Mapping[str, Any]) -> None:
    lake.storage.write_json(path, add_checksum(content, path.rpartition("/")[2]))


def _serial(found: Document | None) -> int:
    return -1 if found is None else found.serial


def _is_mark(content: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return content is not None and not content.get("accepted", True)
