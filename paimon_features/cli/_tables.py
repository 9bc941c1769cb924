"""Tables of all commands: plain text in pipes and with NO_COLOR, drawn by rich on terminals."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*(?:e[-+]?[0-9]+)?(?: ?(?:%|[KMGTP]?i?B|s|min|h|d))?|-|")
_STATES = {
    **dict.fromkeys(("active", "applied", "current", "finished", "fresh", "running"), "green"),
    **dict.fromkeys(("behind", "changed", "held", "not applied", "stale", "stopped"), "yellow"),
    **dict.fromkeys(("expired", "failed", "lost", "rejected"), "red"),
}
"""Colours of cells that are a state: of the word alone, in any case."""
STATUS_COLOURS = {
    "STALE": "yellow", "EXPIRED": "magenta", "MISSING": "dim", "ILL_CONDITIONED": "red",
}  # fmt: skip
"""Colours of the statuses of features."""


def text_table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return rows in columns of equal width; columns with nothing in them are left out.

    >>> text_table([["VIEW", "", "LAG"], ["spend", "", "2"]])
    ['VIEW   LAG', 'spend  2']
    """
    used = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    widths = {i: max(_width(row[i]) for row in rows) for i in used}
    return [
        indent + "  ".join(row[i] + " " * (widths[i] - _width(row[i])) for i in used).rstrip()
        for row in rows
    ]


def table_lines(
    rows: Sequence[Sequence[str]], indent: str = "", *, heading: bool = True
) -> list[str]:
    """Return the lines of a table for standard output; with ``heading`` the first row names the
    columns.

    On a terminal cells that do not fit are wrapped, numbers are on the right, and states coloured.
    """
    if not rows or not styled():
        return text_table(rows, indent)
    from rich.console import Console
    from rich.text import Text

    head, body = (rows[0], rows[1:]) if heading else ([""] * len(rows[0]), rows)
    used = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    table = new_table(heading)
    for i in used:
        number = bool(body) and all(_NUMBER.fullmatch(row[i]) for row in body)
        table.add_column(
            Text(head[i]), justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in body:
        table.add_row(*(Text(row[i], style=_STATES.get(row[i].lower(), "")) for i in used))
    width = shutil.get_terminal_size().columns - len(indent)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    return [indent + line.rstrip() for line in drawn.get().splitlines()]


def new_table(heading: bool = True) -> Table:
    """Return an empty table of rich in the look of all commands."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold", show_header=heading)


def new_console() -> Console:
    """Return a console of rich that is wider than any terminal, which cuts tables by itself."""
    from rich.console import Console

    return Console(highlight=False, width=10_000)


def styled() -> bool:
    """Return True if standard output is a terminal that shows styles; NO_COLOR forbids them."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout.isatty()


def _width(text: str) -> int:
    """Return columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )
