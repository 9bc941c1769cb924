"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows in columns of equal width; columns with nothing in them are left out."""
    used = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    return [indent + "  ".join(row[i].ljust(widths[i]) for i in used).rstrip() for row in rows]
