"""Rows in lists of bounded size, for readers that return one row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

_Row = TypeVar("_Row", bound=Mapping[str, Any])
_PIECE_BYTES = 64 << 20


def pieces(rows: Iterable[_Row], most: int) -> Iterator[list[_Row]]:
    """Yield the rows in lists of at most ``most`` rows, and about 64 MiB of texts.

    >>> list(pieces([{"a": 1}, {"a": 2}, {"a": 3}], 2))
    [[{'a': 1}, {'a': 2}], [{'a': 3}]]
    """
    piece: list[_Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += sum(len(v) for v in row.values() if isinstance(v, str | bytes | list | dict))
        if len(piece) >= most or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
