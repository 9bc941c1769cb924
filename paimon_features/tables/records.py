"""Records: files of the side folder that tables depend on, and whose loss is detected.

A record that is missing must not read as one that was never written: the files of a source would be
ingested twice. So each record has a mark in the folder of its table, which is copied, restored and
dropped with the table::

    <warehouse>/_paimon_features/ingests/features.sales.json          the record
    <database>.db/events_sales/_paimon_features/ingests.sales.json    its mark

The record is written first and the mark second: a crash in between loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from paimon_features.errors import RecordLostError
from paimon_features.tables.catalog import SIDE_FOLDER, Lake
from paimon_features.tables.side_files import read_json, write_json
from paimon_features.tables.storage.object_path import SidePath

_REMOVALS_OF = "removals-of."
"""The name of the marks of removals, which the catalog writes; they survive their table."""
_RESTORE = "restore it from the same backup as the tables"
_ACCEPT = "accept the loss by 'paimon-features records --accept-loss'"

LOSSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ingests": (
            "which files were ingested, so they could be ingested twice",
            f"{_RESTORE}, or name the files that were ingested: "
            "'paimon-features ingest SOURCE FILES --mark-ingested'",
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
        """Whether it exists: a file, or a folder that is not empty."""
        if self.kind == "removals":  # a file of the warehouse, also where that is remote
            folder = f"{self.lake.warehouse}/{SIDE_FOLDER}/{self.kind}"
            return self.lake.storage.is_file(f"{folder}/{self.file}")
        return self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir()))

    def read(self) -> Any | None:
        """Its content, None if it was never written.

        Raises
        ------
        RecordLostError
            If it was written, and does not exist.
        """
        content = read_json(self.path)
        if content is None and self.is_marked():
            content = read_json(self.path)  # it may have been written in between
            if content is None:
                raise self.error()
        return content

    def require(self) -> None:
        """Raise RecordLostError if it was written, and does not exist."""
        # it may have been written in between
        if not self.exists() and self.is_marked() and not self.exists():
            raise self.error()

    def write(self, value: Any) -> None:
        """Replace its content, and mark it."""
        write_json(self.path, value)
        self.mark()

    def mark(self) -> None:
        """Mark it as written, unless the table does not exist yet."""
        if self.table is not None and not self.lake.exists(self.table):
            return
        content = {"record": f"{self.kind}/{self.file}", "name": self.name, "accepted": False}
        if _content(self.lake, self._mark_path) != content:
            self.lake.storage.write_json(self._mark_path, content)

    def is_marked(self) -> bool:
        """Whether it was written, and its loss was not accepted since."""
        return _is_mark(_content(self.lake, self._mark_path))

    def accept_loss(self) -> None:
        """From now on it counts as never written."""
        content = _content(self.lake, self._mark_path)
        if content is not None:
            self.lake.storage.write_json(self._mark_path, {**content, "accepted": True})

    def error(self) -> RecordLostError:
        """The error that says what is lost, and what to do."""
        lost, remedy = LOSSES[self.kind]
        what = f"table {self.table!r}" if self.table else f"database {self.lake.database!r}"
        return RecordLostError(
            f"{what}: its record {self.path} does not exist, but was written before: the folder "
            f"{self.lake.side_folder} was lost or not restored with the tables. It contained "
            f"{lost}: {remedy}"
        )

    @property
    def _mark_path(self) -> str:
        if self.kind == "removals":
            return f"{_marks(self.lake, None)}/{_REMOVALS_OF}{self.name}.json"
        return f"{_marks(self.lake, self.table)}/{self.kind}.{self.name}.json"


def lost_records(lake: Lake) -> list[Record]:
    """The records of all tables that were written and do not exist, by table and kind."""
    tables: list[str | None] = [None, *lake.list()]
    return [record for table in tables for record in _marked(lake, table) if not record.exists()]


def record_names(lake: Lake, kind: str, table: str) -> set[str]:
    """The names of the records of a kind that were written for a table."""
    return {record.name for record in _marked(lake, table) if record.kind == kind}


def _marked(lake: Lake, table: str | None) -> Iterator[Record]:
    folder = _marks(lake, table)
    for entry in sorted(lake.storage.names(folder)):
        content = _content(lake, f"{folder}/{entry}")
        if entry.startswith(_REMOVALS_OF):
            name = entry.removeprefix(_REMOVALS_OF).removesuffix(".json")
            if content is not None and not content.get("accepted", False):
                yield Record(lake, "removals", f"{lake.database}.{name}.json", name, None)
        elif _is_mark(content):
            kind, _, file = content["record"].partition("/")
            yield Record(lake, kind, file, content["name"], table)


def _marks(lake: Lake, table: str | None) -> str:
    return lake.path(SIDE_FOLDER) if table is None else f"{lake.path(table)}/{SIDE_FOLDER}"


def _content(lake: Lake, path: str) -> Any:
    try:
        return json.loads(lake.storage.read_text(path))
    except FileNotFoundError:
        return None


def _is_mark(content: Any) -> bool:
    return content is not None and not content.get("accepted", True)
