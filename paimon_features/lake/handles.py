"""Tables and read builders of pypaimon, as input of readers."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef, tagged
from paimon_features.lake.reading.table_reader import snapshot_as_of

_PINS = (
    "scan.snapshot-id",
    "scan.tag-name",
    "scan.timestamp-millis",
    "scan.timestamp",
    "scan.watermark",
    "scan.version",
    "scan.file-creation-time-millis",
    "scan.creation-time-millis",
    "scan.fallback-branch",
)
_COMPARISONS = {
    "equal": "=",
    "notEqual": "<>",
    "lessThan": "<",
    "lessOrEqual": "<=",
    "greaterThan": ">",
    "greaterOrEqual": ">=",
}


@dataclass(frozen=True, slots=True)
class TableRead:
    """The read described by a pypaimon table and its read builder.

    Attributes
    ----------
    lake, table
        The location of the table.
    snapshot_id
        The snapshot that the table's options pin, a number or ``number@commit``; None if not
        pinned.
    columns
        The columns of the read builder's projection, all by default.
    where
        Its filter, in the expression language.
    """

    lake: Lake
    table: str
    snapshot_id: SnapshotRef | None
    columns: tuple[str, ...]
    where: str | None = None

    @classmethod
    def of(cls, table: Any, read_builder: Any | None = None) -> TableRead:
        """Interpret a table of ``catalog.get_table`` and a builder of ``new_read_builder``.

        Raises
        ------
        ConfigurationError
            If the builder is of another table, or the table has no folder in a database.
        RequestError
            For a limit, an unsupported filter or scan mode: nothing is ignored silently.
        UnknownNameError
            For an unknown tag.
        """
        lake, name = _home(table)
        snapshot_id = _pinned(lake, name, table)
        table_columns = tuple(field.name for field in table.fields)
        if read_builder is None:
            return cls(lake, name, snapshot_id, table_columns)
        if read_builder.table.table_path != table.table_path:
            raise ConfigurationError(
                f"the read builder is of the table in {read_builder.table.table_path}, the "
                f"table given is in {table.table_path}"
            )
        _check_builder(read_builder, name)
        columns = tuple(field.name for field in read_builder._output_fields())
        for column in columns:
            if column not in table_columns:
                raise RequestError(
                    f"the read builder's projection contains {column!r}, which is not a column of "
                    f"table {name!r}; a snapshot reader supports only plain columns"
                )
        predicate = read_builder._predicate
        where = None if predicate is None else condition(predicate)
        return cls(lake, name, snapshot_id, columns, where)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise UnknownNameError for a column that is not part of the read."""
        for column in columns:
            if column not in self.columns:
                owner = f"the projection of table {self.table!r}"
                raise UnknownNameError.of("column", column, self.columns, owner)


def _home(table: Any) -> tuple[Lake, str]:
    folder, _, name = str(table.table_path).rstrip("/").rpartition("/")
    warehouse, _, database = folder.rpartition("/")
    if not warehouse or not database.endswith(".db") or table.current_branch() != "main":
        raise ConfigurationError(
            f"the table in {table.table_path}, branch {table.current_branch()!r}: expected the "
            "main branch of a table in <warehouse>/<database>.db/<table>"
        )
    return Lake.open(warehouse, database.removesuffix(".db")), name


def _check_builder(read_builder: Any, name: str) -> None:
    for setting, value in (
        ("partition filter", read_builder._partition_filter),
        ("limit", read_builder._limit),
    ):
        if value is not None:
            raise RequestError(
                f"the read builder of table {name!r} has a {setting}, which a snapshot reader does "
                "not support; express the rows as a filter"
            )


def _pinned(lake: Lake, name: str, table: Any) -> SnapshotRef | None:
    options = {
        key: str(value)
        for key, value in table.table_schema.options.items()
        if key in _PINS or key.startswith("incremental-between")
    }
    if not options:
        return None
    (key, value), *others = options.items()
    if not others:
        if key == "scan.snapshot-id":
            return int(value)
        if key == "scan.tag-name":
            tags = tagged(lake, name)
            if value not in tags:
                raise UnknownNameError.of("tag", value, tags, f"table {name!r}")
            return tags[value].ref
        if key == "scan.timestamp-millis":
            snapshot = snapshot_as_of(lake, name, int(value))
            if snapshot is not None:
                return snapshot.ref
    raise RequestError(
        f"table {name!r} has the scan options {options}; a snapshot reader supports one of "
        "scan.snapshot-id, scan.tag-name, scan.timestamp-millis (after the first commit)"
    )


def condition(predicate: Any) -> str:
    """Return a predicate of pypaimon in the expression language.

    Raises
    ------
    RequestError
        For an unsupported predicate or value.
    """
    method, values = predicate.method, predicate.literals or []
    if method in ("and", "or"):
        return "(" + f" {method.upper()} ".join(map(condition, values)) + ")"
    name = '"' + str(predicate.field).replace('"', '""') + '"'
    if method in _COMPARISONS:
        return f"{name} {_COMPARISONS[method]} {_constant(values[0], predicate)}"
    if method in ("isNull", "isNotNull"):
        return f"{name} IS {'NOT ' if method == 'isNotNull' else ''}NULL"
    negated = "NOT " if method.startswith("not") else ""
    constants = [_constant(value, predicate) for value in values]
    if method in ("in", "notIn"):
        return f"{name} {negated}IN ({', '.join(constants)})"
    if method in ("between", "notBetween"):
        return f"{name} {negated}BETWEEN {constants[0]} AND {constants[1]}"
    raise RequestError(
        f"the read builder's filter has {method!r} on column {predicate.field!r}, which a snapshot "
        "reader does not support; write those rows to a separate table"
    )


def _constant(value: Any, predicate: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if type(value) is dt.date:
        return f"DATE '{value.isoformat()}'"
    raise RequestError(
        f"the read builder's filter compares column {predicate.field!r} with {value!r}; a snapshot "
        "reader supports finite numbers, strings, booleans and dates"
    )
