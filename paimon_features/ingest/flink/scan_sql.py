"""Reading an input as SQL, up to its cells: a table over the files or topic, and its first views.

Every scan ends in a view with the same columns: ``raw`` (the row as text, for the rejected
table), ``origin`` (the file, or topic, partition and offset), ``broken`` (why the row cannot be
split into cells, null if it can), and ``c_<column>``, the unconverted cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paimon_features.definitions import EventSource
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.input_files import FIELD
from paimon_features.ingest.long_lines import CUT_LINE
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.events.rejects import (
    LINE_TOO_LONG,
    TOO_FEW_COLUMNS,
    TOO_MANY_COLUMNS,
    UNREADABLE,
)

_TOO_LONG = (
    f"WHEN `raw` LIKE '{CUT_LINE}%' AND REGEXP(`raw`, '^.\\[line of [0-9]+ bytes\\]') "
    f"THEN CONCAT('{LINE_TOO_LONG}: it has ', "
    "REGEXP_EXTRACT(`raw`, '^.\\[line of ([0-9]+) bytes\\]', 1), ' bytes; see --max-line-bytes') "
)

_EACH_FIELD = rf",({FIELD})"


@dataclass(frozen=True, slots=True)
class InputScan:
    """The DDL of a temporary table (None: it exists), and views (name, query) on it.

    The last view contains the cells.
    """

    table: str | None
    views: tuple[tuple[str, str], ...]

    @property
    def cells(self) -> str:
        return self.views[-1][0]


def once(expression: str) -> str:
    """Compute an expression once, however often its column is used.

    Flink merges views into one step and repeats an expression wherever its column is used: the
    regular expression that splits a line would run 70 times a row (17 k instead of 140 k rows/s).
    It never repeats a non-deterministic expression, so this makes it look like one.
    """
    return f"CASE WHEN RAND() < 2 THEN {expression} END"


def file_scan(name: str, group: FileGroup) -> InputScan:
    """Return the scan of a group of files; ``name`` is the prefix of its tables and views."""
    makers = {"csv": _csv_scan, "json": _json_scan, "parquet": _parquet_scan}
    return makers[group.format](name, group)


def raw_text(group_format: str, columns: Sequence[InputColumn]) -> str:
    """Return SQL of a rejected row as text: lines unchanged, other formats as JSON."""
    if group_format not in ("parquet", "table"):
        return "`raw`"
    pairs = ", ".join(f"{literal(c.field)} VALUE {_json_value(c)}" for c in columns)
    return f"JSON_OBJECT({pairs} NULL ON NULL)"


def _json_value(column: InputColumn) -> str:
    cell = quote(f"c_{column.name}")
    # JSON_OBJECT supports neither dates nor times
    cast = column.physical.flink.startswith(("DATE", "TIMESTAMP"))
    return f"CAST({cell} AS STRING)" if cast else cell


def not_utf8(columns: Sequence[InputColumn]) -> str:
    """Return SQL of why a typed row cannot be read, else null: its texts may be any bytes.

    Flink would store them, and other readers refuse the whole file.
    """
    texts = {quote(column.field) for column in columns if column.physical.kind == "text"}
    if not texts:
        return "CAST(NULL AS STRING)"
    wrong = " OR ".join(
        f"CAST({text} AS BYTES) <> ENCODE({text}, 'UTF-8')" for text in sorted(texts)
    )
    return f"CASE WHEN {wrong} THEN '{UNREADABLE}: a text is not UTF-8' END"


def row_text(source: EventSource) -> str:
    """Return SQL of the row's values as one JSON object of texts, which ``ingest.release``
    reads."""
    pairs = []
    for name, kind in source.schema.items():
        value = quote(f"v_{name}")
        text = value if kind.text in ("string", "bytes") else f"CAST({value} AS STRING)"
        pairs.append(f"{literal(name)} VALUE {text}")
    return f"JSON_OBJECT({', '.join(pairs)} NULL ON NULL)"


def sql_options(options: Mapping[str, str]) -> str:
    """Return ``'key' = 'value'`` pairs for WITH clauses and hints."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in options.items())


def _csv_scan(name: str, group: FileGroup) -> InputScan:
    text = line_text(name, name)
    # a line equal to the header is a header: concatenated files have several
    split = (
        "SELECT `line`, `raw`, `origin`, "
        + once(f"REGEXP_EXTRACT_ALL(CONCAT(',', `raw`), {literal(_EACH_FIELD)}, 1)")
        + f" AS `fields` FROM {quote(text[0])} "
        f"WHERE `raw` <> '' AND `raw` <> {literal(group.header)}"
    )
    number = "CARDINALITY(`fields`)"
    counts = f"': expected {group.width} columns, got ', CAST({number} AS STRING)"
    # if the fields are not the complete line, there is text between them
    broken = (
        f"CASE {_TOO_LONG}"
        f"WHEN ARRAY_JOIN(`fields`, ',') <> `raw` THEN '{UNREADABLE}: a quote is not closed, "
        "or text follows a closed one (a value cannot contain a line break)' "
        f"WHEN {number} < {group.width} THEN CONCAT('{TOO_FEW_COLUMNS}', {counts}) "
        f"WHEN {number} > {group.width} THEN CONCAT('{TOO_MANY_COLUMNS}', {counts}) "
        f"WHEN {_BAD_ENCODING} THEN '{UNREADABLE}: not UTF-8' END"
    )
    cells = [cell(c, _unquoted(f"`fields`[{c.position}]")) for c in group.columns]
    query = f"SELECT `raw`, `origin`, {once(broken)} AS `broken`, {', '.join(cells)} "
    query += f"FROM {quote(f'{name}_split')}"
    views = (text, (f"{name}_split", split), (f"{name}_cells", query))
    return InputScan(_lines_table(name, group), views)


def _json_scan(name: str, group: FileGroup) -> InputScan:
    return InputScan(_lines_table(name, group), json_views(name, group.columns))


def json_views(name: str, columns: Sequence[InputColumn]) -> tuple[tuple[str, str], ...]:
    """Return the views on a table of lines and their origins, each line one JSON object."""
    text = line_text(name, name)
    return text, *json_cells(name, columns, text[0])


def line_text(name: str, table: str, kept: Sequence[str] = ()) -> tuple[str, str]:
    """Return the view with ``raw``, the line as a text that is safe for every function.

    ``kept`` are further columns of ``table``, quoted.
    """
    # Flink's string functions read past the end of bytes that are not UTF-8; those with regular
    # expressions first decode them, with U+FFFD for invalid bytes. Files from Windows end their
    # lines with CR LF, and Flink splits at LF.
    raw = once("REGEXP_REPLACE(`line`, '\\r++\\z', '')")
    others = "".join(f", {column}" for column in kept)
    return f"{name}_text", f"SELECT `line`, {raw} AS `raw`, `origin`{others} FROM {quote(table)}"


def key_of_object(function: str, key: str) -> str:
    """Return SQL of a JSON function applied to a key of the line."""
    return f"{function}(`raw`, {json_path('$', key)})"


def json_path(parent: str, key: str) -> str:
    """Return the path of a key of an object, as an SQL literal."""
    escaped = key.replace("\\", "\\\\").replace("'", "\\'")
    return literal(f"lax {parent}['{escaped}']")


def json_cells(
    name: str,
    columns: Sequence[InputColumn],
    table: str,
    kept: Sequence[str] = (),
    cells: Sequence[str] = (),
    *,
    first: str | None = None,
    last: str = "",
    read: Callable[[str, str], str] = key_of_object,
) -> tuple[tuple[str, str], ...]:
    """Return the views from ``table``, the texts of JSON objects, to their cells.

    ``cells`` are cells that are computed from ``kept``, further columns of ``table``; ``first``
    and ``last`` are further cases of a text that cannot be split; without ``first``, blank lines
    are skipped. ``read(function, key)`` is the SQL that applies JSON_VALUE or JSON_QUERY to a key.
    """
    # Flink reads the first JSON value of a text and ignores the rest, unless it is in brackets
    all_of_it = "CONCAT('[', `raw`, ']')"
    cases = (
        f"CASE {_TOO_LONG}{first or ''}"
        f"WHEN `raw` IS NULL OR `raw` IS NOT JSON OBJECT OR {all_of_it} IS NOT JSON ARRAY "
        f"OR JSON_EXISTS({all_of_it}, 'lax $[1]') "
        f"THEN '{UNREADABLE}: not one JSON object' "
        f"WHEN {_BAD_ENCODING} THEN '{UNREADABLE}: not UTF-8' "
        f"WHEN {_HALF_CHARACTER} THEN '{UNREADABLE}: an escape \\ud800 to \\udfff without its "
        f"other half is not a character' {last}END"
    )
    others = "".join(f", {column}" for column in kept)
    scalars, cell_values = [], list(cells)
    for column in columns:
        value = quote(f"s_{column.name}")
        # the text of a scalar with all its digits
        scalars.append(f", {once(read('JSON_VALUE', column.field))} AS {value}")
        # objects and lists by their JSON; each function reads the whole line again
        nested = read("JSON_QUERY", column.field)
        cell_values.append(
            cell(column, f"CASE WHEN {value} IS NULL THEN {nested} ELSE {value} END")
        )
    split = (
        f"SELECT `raw`, `origin`, {once(cases)} AS `broken`{others}{''.join(scalars)} "
        f"FROM {quote(table)}"
    )
    if first is None:
        split += " WHERE `raw` IS NULL OR BTRIM(`raw`) <> ''"
    query = (
        f"SELECT `raw`, `origin`, `broken`, {', '.join(cell_values)} FROM {quote(f'{name}_split')}"
    )
    return (f"{name}_split", split), (f"{name}_cells", query)


_BAD_ENCODING = "(`raw` LIKE '%\ufffd%' AND CAST(`line` AS BYTES) <> ENCODE(`line`, 'UTF-8'))"
"""SQL: whether the bytes of a line are not UTF-8."""


_HALF_CHARACTER = (
    r"((`raw` LIKE '%\ud%' OR `raw` LIKE '%\uD%') AND REGEXP(REGEXP_REPLACE(`raw`, "
    r"'\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', ''), "
    r"'\\u[dD][89a-fA-F]'))"
)
"""SQL: whether an escape of a JSON text is half of a surrogate pair, which Java would write as '?'.

From the left, other escapes (also of a backslash) and complete pairs are removed; a surrogate that
remains has no other half."""


def _parquet_scan(name: str, group: FileGroup) -> InputScan:
    # a column may serve several columns of the source
    fields = {column.field: column.physical.flink for column in group.columns}
    declared = "".join(f"{quote(field)} {flink}, " for field, flink in fields.items())
    options = {**_files(group), "format": "parquet", "parquet.utc-timezone": "true"}
    table = (
        f"CREATE TEMPORARY TABLE {quote(name)} ({declared}"
        f"{quote(_ORIGIN)} STRING NOT NULL METADATA FROM 'file.path') "
        f"WITH ({sql_options(options)})"
    )
    cells = ", ".join(cell(column, quote(column.field)) for column in group.columns)
    nothing = "CAST(NULL AS STRING)"
    query = (
        f"SELECT {nothing} AS `raw`, {quote(_ORIGIN)} AS `origin`, "
        f"{not_utf8(group.columns)} AS `broken`, {cells} FROM {quote(name)}"
    )
    return InputScan(table, ((f"{name}_cells", query),))


_ORIGIN = "paimon_features origin"
"""A name that a column of a Parquet file is unlikely to have."""


def cell(column: InputColumn, expression: str) -> str:
    """Return SQL of a column's cell with its name, from the text in which it was found."""
    text = f"BTRIM({expression})" if column.bare else expression
    # a plain column may be repeated
    computed = text if text == quote(column.field) else once(text)
    return f"{computed} AS {quote(f'c_{column.name}')}"


def _lines_table(name: str, group: FileGroup) -> str:
    copied = next((file for file in group.files if file.copy is not None), None)
    if copied is None:
        origin = "`origin` STRING NOT NULL METADATA FROM 'file.path'"
    else:  # it is in a folder, and so in a group, of its own
        origin = f"`origin` AS CAST({literal(str(copied.path))} AS STRING)"
    return (
        f"CREATE TEMPORARY TABLE {quote(name)} (`line` STRING, {origin}) "
        f"WITH ({sql_options({**_files(group), 'format': 'raw'})})"
    )


def _files(group: FileGroup) -> dict[str, str]:
    paths = [file.read_path for file in group.files]
    if len(paths) == 1:
        return {"connector": "filesystem", "path": f"file://{paths[0]}"}
    folder: Path = paths[0].parent
    names = "|".join(_java_literal(path.name) for path in paths)
    return {
        "connector": "filesystem",
        "path": f"file://{folder}",
        "source.path.regex-pattern": f"{_java_literal(f'{folder}/')}(?:{names})",
    }


def _java_literal(text: str) -> str:
    return re.sub(r"([^0-9A-Za-z_/ ])", r"\\\1", text)


def _unquoted(field: str) -> str:
    """Return the value of a CSV field: an empty field is null, empty quotes are an empty text."""
    inner = f"SUBSTRING({field}, 2, CHAR_LENGTH({field}) - 2)"
    return (
        f"CASE WHEN {field} LIKE '\"%' THEN REPLACE({inner}, '\"\"', '\"') "
        f"WHEN {field} <> '' THEN {field} END"
    )
