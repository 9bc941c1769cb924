"""SQL that is the same in Flink and DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paimon_features.core.expressions import calendar_time
from paimon_features.core.expressions.items import (
    ESCAPES,
    NEGATIVE,
    PART,
    PART_ESCAPES,
    POSITIVE,
    RANK_LIMITS,
    SKETCH_HEADER,
)
from paimon_features.core.expressions.nodes import Call, Literal, date_text, quoted, time_text
from paimon_features.core.types.schema import DataType, Date, DecimalType, Float64, Int64
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS

_PART = f"CHR({ord(PART)})"


def literal(constant: Literal, type_name: str) -> str:
    """Return a constant of exactly its type; ``type_name`` is the type in the dialect."""
    value, kind = constant.value, constant.type
    if value is None:
        return f"CAST(NULL AS {type_name})"
    if kind is Float64:
        return float_text(value)
    if kind.is_numeric:
        return f"CAST({value:{'f' if kind.is_decimal else 'd'}} AS {type_name})"
    if kind.text == "bool":
        return "TRUE" if value else "FALSE"
    if kind.text == "string":
        return f"CAST({quoted(value, chr(39))} AS {type_name})"
    text = date_text(value) if kind.text == "date" else time_text(value)
    return f"CAST({kind.text.upper()} '{text}' AS {type_name})"


def float_text(value: float) -> str:
    """Return a float literal that both SQL dialects read as this very float64."""
    text = repr(value)
    text = text.replace("e", "E") if "e" in text else text + "E0"
    return f"({text})" if text.startswith("-") else text


def constant_divisor(expr: Call) -> int | None:
    """Return the divisor if it is a constant."""
    divisor = expr.args[1]
    return divisor.value if isinstance(divisor, Literal) else None


def case(_: Call, *args: str) -> str:
    """Return CASE of alternating conditions and values, and the ELSE value."""
    whens = [f"WHEN {c} THEN {v}" for c, v in zip(args[:-1:2], args[1::2], strict=True)]
    return f"(CASE {' '.join(whens)} ELSE {args[-1]} END)"


def bucket(_: Call, x: str, *edges: str) -> str:
    """Return the number of (increasing) edges that are not above ``x``."""
    steps = [f"WHEN {x} >= {e} THEN CAST({n} AS BIGINT)" for n, e in enumerate(edges, 1)]
    return f"(CASE {' '.join(reversed(steps))} WHEN {x} < {edges[0]} THEN CAST(0 AS BIGINT) END)"


def where(test: str, value: str) -> str:
    """Return ``value`` where the test is true, else NULL."""
    return f"(CASE WHEN {test} THEN {value} END)"


def instant(kind: DataType, time_ms: int) -> str:
    """Return a time as a constant that a value of this type compares with."""
    if kind is Int64:
        return str(time_ms)
    if kind is Date:
        return f"DATE '{date_text(time_ms // DAY_MS)}'"
    return f"TIMESTAMP '{time_text(time_ms)}'"


def local_ms(expr: Call, x: str, utc_ms: str) -> str:
    """Return the local time, by a binary search of the offset; NULL beyond years 1 to 9999."""
    kind, zone = expr.args[0].type, calendar_time.transitions_of(expr.args[1:])

    def offset(first: int, last: int) -> str:
        if first == last:
            return str(zone.offsets[first])
        middle = (first + last) // 2
        below, above = offset(first, middle), offset(middle + 1, last)
        return (
            f"CASE WHEN {x} < {instant(kind, zone.changes[middle])} THEN {below} ELSE {above} END"
        )

    low, high = (instant(kind, bound) for bound in calendar_time.bounds(zone))
    text = f"{utc_ms} + {-MIN_TIME_MS}"
    if any(zone.offsets):
        text = f"{text} + {offset(0, len(zone.changes))}"
    return where(f"{x} >= {low} AND {x} <= {high}", text)


def truncated(expr: Call, x: str, regular: str) -> str:
    """Return the start, UTC ms, of a unit.

    ``regular`` is the start where the clocks do not change within the unit; it is NULL beyond
    the years 1 to 9999.
    """
    kind, zone = expr.type, calendar_time.transitions_of(expr.args[3:])
    unit = expr.args[2].value  # type: ignore[attr-defined]
    units = calendar_time.changed_units(unit, zone)

    def start(first: int, last: int) -> str:
        begin, end = units[first]
        if first == last:
            following = units[last + 1][0] if last + 1 < len(units) else None
            tests = [f"{x} >= {instant(kind, begin)}"] if first == 0 else []
            tests += [f"{x} < {instant(kind, end)}"] if end != following else []
            return f"CASE WHEN {' AND '.join(tests)} THEN {begin} END" if tests else str(begin)
        middle = (first + last + 1) // 2
        below, above = start(first, middle - 1), start(middle, last)
        return f"CASE WHEN {x} < {instant(kind, units[middle][0])} THEN {below} ELSE {above} END"

    text = f"({regular})"
    if units:
        text = f"COALESCE(CAST({start(0, len(units) - 1)} AS BIGINT), {text})"
    low = calendar_time.first_start(unit, zone)
    return (
        text
        if low == calendar_time.bounds(zone)[0]
        else where(f"{x} >= {instant(kind, low)}", text)
    )


def half_even(x: str) -> str:
    """Return ``x`` rounded to an integral float64, half to even.

    From 2^52 on there is nothing to round; below, the unit in the last place of x + 2^52 is 1,
    and IEEE addition rounds half to even. See Hacker's Delight, section 17-2.
    """
    big = "4503599627370496E0"
    return (
        f"(CASE WHEN ABS({x}) >= {big} THEN {x} WHEN {x} < 0E0 THEN ({x} - {big}) + {big} "
        f"ELSE ({x} + {big}) - {big} END)"
    )


def item(
    expr: Call,
    args: Sequence[str],
    ordered_value: Callable[[DataType, str], str],
    or_null: Callable[[str, str], str],
) -> str:
    """Return an item of a list.

    ``ordered_value`` is the text of a part that is neither an integer nor a text;
    ``or_null(x, text)`` is the text, NULL where ``x`` is.
    """
    texts = []
    for position, (arg, x) in enumerate(zip(expr.args, args, strict=True), 1):
        if arg.type is Int64:
            text = _item_int(x)
        elif arg.type.text == "string":
            text = _item_string(x, last=position == len(args))
        else:
            text = ordered_value(arg.type, x)
        texts.append(or_null(x, text))
    last = texts[-1]
    if len(texts) == 1:
        return last
    parts = [f"COALESCE({text}, '') || {_PART}" for text in texts[:-1]]
    return f"({' || '.join(parts)} || {last})"


def _item_int(x: str) -> str:
    """Return a BIGINT as a part of an item (both SQL dialects)."""
    digits = f"CAST({x} AS STRING)"
    size = f"CHAR_LENGTH({digits})"
    return (
        f"CASE WHEN {x} < 0 THEN SUBSTRING('{NEGATIVE}', {size} - 1, 1) || "
        f"TRANSLATE(SUBSTRING({digits}, 2), '0123456789', '9876543210') "
        f"ELSE SUBSTRING('{POSITIVE}', {size}, 1) || {digits} END"
    )


def _item_string(x: str, last: bool) -> str:
    """Return a text as a part of an item (both SQL dialects)."""
    for character, escape in ESCAPES if last else (*PART_ESCAPES, *ESCAPES):
        # control characters are not written into the statement
        if character < " ":
            mark = f"CHR({ord(PART_ESCAPES[0][0])})"
            x = f"REPLACE({x}, CHR({ord(character)}), {mark} || '{escape[1:]}')"
        else:
            x = f"REPLACE({x}, '{character}', '{escape}')"
    return f"CHR(39) || {x}"


def sketch_hex(digest: str) -> str:
    """Return the hexadecimal digits of the sketch of a digest (both SQL dialects)."""
    ranks = " ".join(
        f"WHEN SUBSTRING({digest}, 4, 4) >= '{limit}' THEN '{rank:x}'"
        for rank, limit in enumerate(RANK_LIMITS, 1)
    )
    return f"'{SKETCH_HEADER}' || CASE {ranks} ELSE 'f' END || SUBSTRING({digest}, 1, 3)"


def signed_text(negative: str, value: str, below: str) -> str:
    """Return the order-preserving text of an integer: a sign and 19 digits (both dialects).

    ``below`` is the value plus 2^63 where it is negative.
    """
    return (
        f"CASE WHEN {negative} THEN '0' || LPAD(CAST({below} AS STRING), 19, '0') "
        f"ELSE '1' || LPAD(CAST({value} AS STRING), 19, '0') END"
    )


def decimal_text(x: str, kind: DecimalType, absolute: str) -> str:
    """Return the order-preserving text of a decimal: a sign, then digits, complemented below 0."""
    digits = f"LPAD({absolute}, {kind.precision + 2}, '0')"
    return (
        f"CASE WHEN {x} < 0 THEN '0' || TRANSLATE({digits}, '0123456789', '9876543210') "
        f"ELSE '1' || {digits} END"
    )
