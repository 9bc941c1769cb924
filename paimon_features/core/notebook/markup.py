"""HTML of what a notebook shows of an object: a title, facts, small tables, pictures.

Every text is escaped here, so that a name or a value of someone else is never markup: what is
passed in is text, unless this module or a picture of ours made it (``Markup``). Sizes are bounded:
a notebook keeps its outputs.

>>> str(table([["<b>", 1234567]], ["name", "rows"]))[:63]
'<table class="pf"><thead><tr><th>name</th><th>rows</th></tr></t'
"""

from __future__ import annotations

import datetime
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_ROWS = 60
"""Rows of a table that are shown; the number of the others is."""
MAX_TEXT = 400
"""Characters of a value that are shown."""

_STYLE = (
    "<style>.pf-card{font:13px/1.45 system-ui,sans-serif}.pf-card h4{font-size:14px;margin:.2em 0}"
    ".pf-card p{margin:.2em 0;opacity:.8}.pf-card svg{max-width:100%;height:auto}"
    "table.pf{border-collapse:collapse;margin:.3em 0;font-size:12px;display:block;overflow-x:auto}"
    ".pf-card table.pf td,.pf-card table.pf th{border:0;"
    "border-bottom:1px solid rgba(128,128,128,.3);"
    "padding:.15em .9em .15em 0;text-align:left!important;vertical-align:top;white-space:pre-wrap}"
    "table.pf th{font-weight:600}.pf-card table.pf td.n{text-align:right!important;"
    "font-variant-numeric:tabular-nums}"
    "</style>"
)


class Markup(str):
    """A text that is HTML already. Only this package makes them, from escaped parts."""

    __slots__ = ()


def escaped(value: object) -> str:
    """Return a value as HTML: markup as it is, and anything else as text, shortened.

    >>> escaped("<script>"), escaped(None), escaped(1234.5), escaped(Markup("<i>"))
    ('&lt;script&gt;', '–', '1,234.50', '<i>')
    """
    return str(value) if isinstance(value, Markup) else html.escape(text(value))


def text(value: object) -> str:
    """Return a value as people read it, in at most ``MAX_TEXT`` characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.6g}"
    if isinstance(value, list | tuple) and len(value) > MAX_TEXT:
        # what is cut off anyway is not turned into text first
        value = [*value[:MAX_TEXT], "…"]
    shown = str(value)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


def utc(time_ms: int | None) -> str:
    """Return a time (UTC ms) to the second, to the millisecond where it is not a whole second.

    >>> utc(1322697600000), utc(1), utc(None)
    ('2011-12-01 00:00:00', '1970-01-01 00:00:00.001', '–')
    """
    if time_ms is None:
        return "–"
    try:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.isoformat(" ", "seconds" if time_ms % 1000 == 0 else "milliseconds")


def table(
    rows: Iterable[Sequence[object]], head: Sequence[str] = (), *, grouped: bool = True
) -> Markup:
    """Return a table; of more than ``MAX_ROWS`` rows the first ones and the number of the others.

    ``grouped`` writes integers as ``1,000``; those of data are keys and times, too: not grouped.
    """
    listed = list(rows)
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    top = f"<thead><tr>{cells}</tr></thead>" if head else ""
    body = "".join(
        f"<tr>{''.join(_cell(value, grouped) for value in row)}</tr>" for row in listed[:MAX_ROWS]
    )
    more = len(listed) - MAX_ROWS
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return Markup(f'<table class="pf">{top}<tbody>{body}</tbody></table>{rest}')


def columns_table(columns: Mapping[str, Sequence[object]]) -> Markup:
    """Return a table given by columns of one length."""
    return table(zip(*columns.values(), strict=True), list(columns), grouped=False)


def arrow_table(data: Any) -> Markup:
    """Return the first rows of an Arrow table, without converting the others."""
    shown = data.slice(0, MAX_ROWS)
    values = zip(*(column.to_pylist() for column in shown.columns), strict=True)
    body = table(values, data.column_names, grouped=False)
    count = f"{data.num_rows:,} rows, {data.num_columns:,} columns"
    return Markup(f"<p>{count}</p>{body}")


def facts(pairs: Mapping[str, object]) -> Markup:
    """Return names and values, one below the other; values that are None or empty are left out."""
    return table(
        (Markup(f"<b>{html.escape(name)}</b>"), value)
        for name, value in pairs.items()
        if value is not None and not (isinstance(value, str | tuple | list | dict) and not value)
    )


def mapping_text(values: Mapping[str, object]) -> str:
    """Return a mapping on one line: ``a: 1, b: 2``."""
    return ", ".join(f"{name}: {text(value)}" for name, value in values.items())


def card(title: str, *parts: object, note: str = "") -> str:
    """Return what ``_repr_html_`` returns: a title, a note below it, and parts in order."""
    note_html = f"<p>{escaped(note)}</p>" if note else ""
    inner = "".join(map(escaped, parts))
    return (
        f'{_STYLE}<div class="pf-card"><h4>{html.escape(text(title))}</h4>{note_html}{inner}</div>'
    )


def _cell(value: object, grouped: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escaped(value)}</td>"
    plain = isinstance(value, int) and not grouped
    return f'<td class="n">{value if plain else escaped(value)}</td>'
