"""Flink SQL that converts one cell from the file's type to the column's: exactly, or to null.

Flink's own casts are not used alone, because they guess: ``TRY_CAST('12.7' AS BIGINT)`` is 12,
``TRY_CAST('2011-02-30 10:00:00' AS TIMESTAMP)`` is the 28th, ``CAST(NaN AS BIGINT)`` is 0, and
narrowing an integer wraps. Here a value has an exact counterpart in the type, or none.

The accepted texts:

=========== ==========================================================================
integers    ``12``, ``-3``, ``+4``, and integers with a fraction of zeros, ``17850.0``
floats      ``2.55``, ``.5``, ``1e-3``; not ``nan``, ``inf``, ``0x1p3``, ``5f``
decimals    as many fractional digits as the type has; further ones only if zero
booleans    ``true``, ``false``, ``t``, ``f``, ``yes``, ``no``, ``y``, ``n``, ``1``, ``0``
dates       ``2010-12-01``
times       RFC 3339, ``2010-12-01T08:26:30.125+01:00``, also in part: ``2010-12-01``,
            ``2010-12-01 08:26`` (UTC; digits after the milliseconds are truncated), or the
            milliseconds since 1970
=========== ==========================================================================

Surrounding blanks are significant only in strings; an empty text is null in all other types.
"""

from __future__ import annotations

from paimon_features.core.expressions.flink_floors import floor_sql
from paimon_features.core.times.utc_ms import FINER_TEXT
from paimon_features.core.types.schema import DataType, DecimalType
from paimon_features.core.windows import DAY_MS, HOUR_MS, MIN_TIME_MS, MINUTE_MS, SECOND_MS
from paimon_features.ingest import patterns
from paimon_features.ingest.physical import Physical
from paimon_features.lake.ddl import literal

_GREATEST = {"float32": "3.4028234663852886E38", "float64": "1.7976931348623157E308"}
_UNIT_PER_MS = {"us": 1_000, "ns": 1_000_000}
_FRACTION = r"\.([0-9]{1,3})"
_OFFSET = "^.{16}[^+-]*([+-])([0-9]{2}):?([0-9]{2})?$"
"""Sign, hours and minutes of the offset of a time; a day alone is shorter."""
_FIRST_DAY, _LAST_DAY = "DATE '0001-01-01'", "DATE '9999-12-31'"


def cell_value(cell: str, source: Physical, kind: DataType, is_time: bool = False) -> str:
    """Return SQL of the value of type ``kind``; null where ``cell`` is null or has no counterpart.

    ``cell`` is a column that occurs often in the result, so it should be computed before. A text
    that is converted to another type must have no surrounding blanks.
    ``is_time``: the column is an Int64 time of events or versions, so texts of times are read as
    well.
    NaN and infinities have no counterpart.
    """
    if source.kind.startswith("timestamp["):
        return _from_ms(_timestamp_ms(cell, source.kind[10:-1]), kind)
    if source.kind == "date" and (is_time or kind.text == "timestamp"):
        return _from_ms(f"{_days(cell)} * {DAY_MS}", kind)
    if is_value(source, kind):
        return cell
    if source.kind == "date" and kind.text == "date":
        return f"CASE WHEN {cell} BETWEEN {_FIRST_DAY} AND {_LAST_DAY} THEN {cell} END"
    if source.kind == "integer" and (kind.is_integer or kind.text == "timestamp"):
        return _from_ms(_narrow(f"CAST({cell} AS BIGINT)", kind), kind)
    if source.kind == "float" and (kind.is_integer or kind.text == "timestamp"):
        return _from_ms(_narrow(_whole(cell), kind), kind)
    if source.kind == "float" and isinstance(kind, DecimalType):
        # the decimal that a person would write for the double, if it is that double again
        decimal = f"TRY_CAST({cell} AS {kind.flink})"
        exact = f"CASE WHEN CAST({decimal} AS DOUBLE) = {cell} THEN {decimal} END"
        # even TRY_CAST fails the job for NaN
        return f"CASE WHEN ABS({cell}) <= {_GREATEST['float64']} THEN {exact} END"
    if source.kind in ("integer", "float") and kind.is_float:
        finite = f"ABS({cell}) <= {_GREATEST[kind.text]}"
        return f"CASE WHEN {finite} THEN CAST({cell} AS {kind.flink}) END"
    text = cell if source.kind == "text" else f"CAST({cell} AS STRING)"
    return _from_text(text, kind, is_time)


def finer_than_ms(cell: str, source: Physical) -> str | None:
    """Return SQL of whether a cell is a time with digits after the milliseconds.

    None if it cannot be.
    """
    if source.kind in ("text", "timestamp[int96]"):
        return f"REGEXP(CAST({cell} AS STRING), {literal(FINER_TEXT)})"
    per_ms = _UNIT_PER_MS.get(source.kind.removeprefix("timestamp[").removesuffix("]"))
    return None if per_ms is None else f"MOD({cell}, {per_ms}) <> 0"


def is_value(source: Physical, kind: DataType) -> bool:
    """Return True if a cell is the value: no conversion, and each cell has a counterpart."""
    if source.kind == "integer":
        return source.flink == kind.flink
    names = {"boolean": "bool", "bytes": "bytes", "text": "string"}
    return names.get(source.kind) == kind.text


def is_repeatable(source: Physical, kind: DataType) -> bool:
    """Return True if the value costs so little that it may be computed wherever it is used."""
    number = source.kind in ("integer", "float") and kind.is_float
    return number or is_value(source, kind)


def is_present(cell: str, source: Physical, kind: DataType) -> str:
    """Return SQL: whether the cell is not empty, so that a null value means a failed conversion."""
    if source.kind == "text" and kind.text != "string":
        return f"{cell} <> ''"
    return f"{cell} IS NOT NULL"


def is_not_finite(cell: str, source: Physical, value: str, kind: DataType) -> str | None:
    """Return SQL: whether a non-empty cell is NaN, infinite, or beyond the range of its float type.

    ``value`` is the column with ``cell_value``. None for types where it is impossible.
    """
    if source.kind == "float":
        # NaN fails every comparison, and Flink would invert a negated one
        infinite = f"CASE WHEN ABS({cell}) <= {_GREATEST['float64']} THEN FALSE ELSE TRUE END"
        return f"({value} IS NULL)" if kind.is_float else f"({value} IS NULL AND {infinite})"
    if source.kind == "text" and (kind.is_float or kind.is_integer or kind.is_decimal):
        named = f"({value} IS NULL AND REGEXP({cell}, '{patterns.NOT_FINITE}'))"
        if not kind.is_float:
            return named
        return f"({named} OR ABS({value}) > {_GREATEST[kind.text]})"
    return None


def now_ms_sql() -> str:
    """Return SQL of the clock at each row (not one instant for the job), UTC ms."""
    return (
        f"(EXTRACT(EPOCH FROM LOCALTIMESTAMP) * {SECOND_MS} "
        "+ EXTRACT(MILLISECOND FROM LOCALTIMESTAMP))"
    )


def _from_text(text: str, kind: DataType, is_time: bool) -> str:
    if kind.text == "string":
        return text
    if kind.text == "bool":
        return f"TRY_CAST({text} AS BOOLEAN)"
    if kind.text == "timestamp":
        return _timestamp(_time_ms(text, least_ms=MIN_TIME_MS))
    if is_time:
        return _time_ms(text)
    value = f"TRY_CAST({text} AS {kind.flink})"
    if isinstance(kind, DecimalType):
        pattern = patterns.decimal_pattern(kind.scale)
        # casting a text counts leading zeros as digits; casting a decimal does not
        value = f"TRY_CAST(TRY_CAST({text} AS DECIMAL(38, {kind.scale})) AS {kind.flink})"
    else:
        # the cast to an integer drops a fraction of zeros
        pattern = (
            patterns.DATE
            if kind.text == "date"
            else patterns.INTEGER
            if kind.is_integer
            else patterns.FLOAT
        )
    return f"CASE WHEN REGEXP({text}, '{pattern}') THEN {value} END"


def _time_ms(text: str, least_ms: int | None = None) -> str:
    """Return the SQL for milliseconds of a time, parsed by its parts: without time zone and
    lenient parser.

    ``least_ms`` is the lower bound of times.
    """

    def part(start: int, unit_ms: int) -> str:
        return f"COALESCE(TRY_CAST(SUBSTRING({text}, {start}, 2) AS BIGINT), 0) * {unit_ms}"

    def group(pattern: str, number: int) -> str:
        return f"REGEXP_EXTRACT({text}, '{pattern}', {number})"

    def digits(pattern: str, number: int) -> str:
        return f"COALESCE(TRY_CAST({group(pattern, number)} AS BIGINT), 0)"

    day = _days(f"TRY_CAST(SUBSTRING({text}, 1, 10) AS DATE)")
    second = "^.{16}:([0-9]{2})"
    fraction = f"RPAD({group(_FRACTION, 1)}, 3, '0')"
    offset = (
        f"({digits(_OFFSET, 2)} * {HOUR_MS} + {digits(_OFFSET, 3)} * {MINUTE_MS}) "
        f"* CASE WHEN {group(_OFFSET, 1)} = '-' THEN 1 ELSE -1 END"
    )
    after = f"SUBSTRING({text}, 17)"
    written = (
        f"{day} * {DAY_MS} + {part(12, HOUR_MS)} + {part(15, MINUTE_MS)}"
        f" + {digits(second, 1)} * {SECOND_MS} + COALESCE(TRY_CAST({fraction} AS BIGINT), 0)"
        f" + CASE WHEN {after} LIKE '%+%' OR {after} LIKE '%-%' THEN {offset} ELSE 0 END"
    )
    is_leap = f"SUBSTRING({text}, 17, 3) = ':60'"
    bad = f"{is_leap} AND ({written} < 0 OR MOD({written}, {DAY_MS}) >= {SECOND_MS})"
    bound = ""
    if least_ms is not None:
        # an offset leads out of the first year
        bad += f" OR SUBSTRING({text}, 1, 4) = '0001' AND {written} < {least_ms}"
        bound = f" AND TRY_CAST({text} AS BIGINT) >= {least_ms}"
    return (
        f"CASE WHEN REGEXP({text}, '{patterns.TIME}') "
        f"THEN CASE WHEN {bad} THEN CAST(NULL AS BIGINT) ELSE {written} END "
        f"WHEN REGEXP({text}, '{patterns.INTEGER}'){bound} THEN TRY_CAST({text} AS BIGINT) END"
    )


def _days(date: str) -> str:
    return f"CAST(TIMESTAMPDIFF(DAY, DATE '1970-01-01', {date}) AS BIGINT)"


def _timestamp_ms(cell: str, unit: str) -> str:
    if unit == "int96":
        return _time_ms(f"CAST({cell} AS STRING)")
    if unit == "ms":
        return cell
    per_ms = _UNIT_PER_MS[unit]
    return f"{floor_sql(f'({cell})', per_ms)} / {per_ms}"


def _whole(cell: str) -> str:
    # 2^63 is the first double beyond BIGINT; its negative is the least BIGINT
    fits = f"{cell} >= -9.223372036854775808E18 AND {cell} < 9.223372036854775808E18"
    return f"CASE WHEN {cell} = FLOOR({cell}) AND {fits} THEN CAST({cell} AS BIGINT) END"


def _narrow(whole: str, kind: DataType) -> str:
    if kind.text != "int32":
        return whole
    # a cast from BIGINT to INT would wrap
    return f"TRY_CAST(CAST({whole} AS STRING) AS INT)"


def _from_ms(ms: str, kind: DataType) -> str:
    if kind.text != "timestamp":
        return ms
    return _timestamp(f"CASE WHEN {ms} >= {MIN_TIME_MS} THEN {ms} END")


def _timestamp(ms: str) -> str:
    # null beyond the year 9999, but not in the year 0
    return f"CAST(TO_TIMESTAMP_LTZ({ms}, 3) AS TIMESTAMP(3))"
