"""The mapping of a source's columns to those of files, or to the keys of a topic's messages.

Files of one folder with the same mapping are read together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.physical import TEXT, Physical, check_readable


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of the source and its counterpart in a group of files.

    ``field`` is its name there, ``position`` its number (from 1) in a CSV line. ``bare``: a text
    that is converted to another type, so that surrounding blanks are ignored.
    """

    name: str
    field: str
    position: int
    physical: Physical
    bare: bool


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one folder and format with the same column mapping: one scan of the job.

    ``ignored`` are columns of the files that the source does not have; ``absent`` columns of the
    source that none of the inspected JSON rows has: null, unless a later row has them.
    """

    format: str
    files: tuple[InputFile, ...]
    columns: tuple[InputColumn, ...]
    ignored: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def header(self) -> str:
        return self.files[0].header

    @property
    def width(self) -> int:
        """The number of fields of a CSV line."""
        return len(self.files[0].columns)


def group_files(
    files: Sequence[InputFile], source: EventSource, mapping: Mapping[str, str]
) -> list[FileGroup]:
    """Group files that one scan can read, with their columns; see ``find_columns``."""
    check_mapping(source, mapping)
    groups: dict[tuple[object, ...], FileGroup] = {}
    for file in files:
        columns = find_columns(file, source, mapping)
        used = {column.field for column in columns}
        ignored = tuple(name for name in file.columns if name not in used)
        absent = tuple(c.name for c in columns if file.columns and c.field not in file.columns)
        key = (file.read_path.parent, file.format, file.header, columns)
        if key in groups:
            group = groups[key]
            files_ = (*group.files, file)
            ignored = tuple(dict.fromkeys(group.ignored + ignored))
            absent = tuple(name for name in group.absent if name in absent)
        else:
            files_ = (file,)
        groups[key] = FileGroup(file.format, files_, columns, ignored, absent)
    return list(groups.values())


def find_columns(
    file: InputFile, source: EventSource, mapping: Mapping[str, str]
) -> tuple[InputColumn, ...]:
    """Return the column of a file for each column of the source.

    It is the one in ``mapping``, else the column of the same name, else one whose name differs
    only in case, blanks and underscores (``CustomerID`` for ``customer_id``). A JSON row may lack
    any column but the event time.

    Raises
    ------
    ConfigurationError
        For a column that is missing, ambiguous, or can never have the right type.
    """
    columns: list[InputColumn] = []
    for name, kind in source.schema.items():
        field = _field_of(name, mapping.get(name), file, source)
        position = file.columns.index(field) if field in file.columns else -1
        physical = file.physical[position] if file.physical else TEXT
        try:
            check_readable(name, physical, kind)
        except ConfigurationError as error:
            raise ConfigurationError(f"{file.path}: {error}") from None
        bare = physical == TEXT and kind.text != "string"
        number = position + 1 if file.format == "csv" else 0
        columns.append(InputColumn(name, field, number, physical, bare))
    return tuple(columns)


def _field_of(name: str, wanted: str | None, file: InputFile, source: EventSource) -> str:
    """Return the name that a column of the source has in a file."""
    candidates = candidates_of(name, wanted, file.columns)
    if len(candidates) == 1:
        return candidates[0]
    field = wanted or name
    # the keys of a JSON file without rows are unknown, and a later row may have more keys
    if file.format == "json" and not candidates:
        if name != source.event_time or not file.columns:
            return field
        problem = unknown_name("key", field, file.columns, "the first rows")
    elif candidates:
        problem = f"{' and '.join(map(repr, candidates))} could both be {name!r}"
    else:
        problem = unknown_name("column", field, file.columns)
    raise ConfigurationError(
        f"{file.path}: {problem}. Choose it by --column {name}=<name in the file>"
    )


def candidates_of(name: str, wanted: str | None, columns: Sequence[str]) -> list[str]:
    """Return the columns of an input that can be a column of the source; ``wanted`` was named for
    it.

    >>> candidates_of("user_id", None, ["User ID", "x"])
    ['User ID']
    >>> candidates_of("user_id", None, ["User ID", "user_id", "UserId"])
    ['user_id']
    """
    if wanted is not None:
        return [c for c in columns if c == wanted]
    return [c for c in columns if c == name] or [c for c in columns if _plain(c) == _plain(name)]


def check_mapping(source: EventSource, mapping: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a mapping of a column that the source does not have."""
    for name in mapping:
        if name not in source.schema:
            message = unknown_name("column", name, source.schema, f"source {source.name!r}")
            raise ConfigurationError(f"--column {name}={mapping[name]}: {message}")


def check_changes(what: str, source: EventSource, mapping: Mapping[str, str]) -> str:
    """Return the retraction column, which takes the kind of each change of ``what``.

    Raises
    ------
    ConfigurationError
        If the source has none, or it is mapped to a column.
    """
    if source.retraction is None:
        raise ConfigurationError(
            f"{what}: source {source.name!r} has no retraction column for updates and deletions; "
            'declare one, for example schema={..., "op": String}, retraction="op"'
        )
    if source.retraction in mapping:
        raise ConfigurationError(
            f"--column {source.retraction}=...: {what}: the retraction column is filled from the "
            "kind of each change"
        )
    return source.retraction


def parse_mapping(texts: Iterable[str]) -> dict[str, str]:
    """Return the mapping of ``--column`` options.

    >>> parse_mapping(["invoice_time_ms=InvoiceDate"])
    {'invoice_time_ms': 'InvoiceDate'}
    """
    mapping: dict[str, str] = {}
    for text in texts:
        name, separator, field = text.partition("=")
        if not separator or not name or not field:
            raise ConfigurationError(
                f"--column {text}: expected <column of the source>=<column of the file>"
            )
        mapping[name.strip()] = field
    return mapping


def _plain(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower())
