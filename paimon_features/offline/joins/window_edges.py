"""Which raw events a point-in-time join needs: those in tiles that a window partly covers.

::

    tiles   [-------)[-------)[-------)[-------)
    window      [-------------------------)              tail | full tiles | head
    window                       [--)                    within a tile: a head, nothing else
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import Window, ceil_ms, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView


class EdgeSpan(NamedTuple):
    """Per row, the raw events in ``[low_ms, high_ms)`` of the tile that starts at ``tile_ms``.

    Empty where both are equal. Where all rows need the tile from its start, ``low_ms`` is the same
    array object as ``tile_ms``.
    """

    tile_ms: Ints
    low_ms: Ints
    high_ms: Ints


def need_other_tiles(windows: Iterable[Window]) -> bool:
    """Return True if raw events of tiles other than that of ``q`` are needed."""
    return any(w.needs_tail or (w.needs_head and w.offset_ms) for w in windows)


def edge_tiles(
    view: CompiledView, features: Sequence[CompiledFeature], as_of_ms: Ints
) -> Iterator[tuple[Ints, Ints]]:
    """Yield tiles whose raw events are needed: tile starts, and the positions of their rows.

    Tiles may repeat; a missing one would lose events.
    """
    windows = dict.fromkeys(feature.window for feature in features)
    spans = WindowEdges(view, windows, as_of_ms, floor_ms(as_of_ms, view.tile_ms))
    for span in spans.found:
        some = np.flatnonzero(span.high_ms > span.low_ms)
        yield span.tile_ms[some], some


class WindowEdges:
    """The distinct spans of ``windows`` for rows at ``as_of_ms``; ``tile_ms`` is ``as_of_ms``
    floored.

    ``heads`` and ``tails`` map windows to positions in ``found``. ``newest`` is the head up to the
    view's horizon, None where that is a tile border.
    """

    def __init__(
        self, view: CompiledView, windows: Iterable[Window], as_of_ms: Ints, tile_ms: Ints
    ) -> None:
        self._q, self._floor, self._tile_ms = as_of_ms, tile_ms, view.tile_ms
        self.found: list[EdgeSpan] = []
        self.heads: dict[Window, int] = {}
        self.tails: dict[Window, int] = {}
        self._head_of_offset: dict[int, int] = {}
        for window in windows:
            if window.fits_in_a_tile:
                self._add_both(window)
                continue
            if window.needs_tail:
                start = window.start(as_of_ms)
                span = EdgeSpan(floor_ms(start, view.tile_ms), start, ceil_ms(start, view.tile_ms))
                self.tails[window] = self._add(span)
            if window.needs_head:
                self.heads[window] = self._head(window.offset_ms)
        # whether an entity is known depends on the newest event before the last window end
        offsets = [w.offset_ms for w in view.windows if w.needs_head]
        self.newest = self._head(min(offsets)) if offsets else None

    def _head(self, offset_ms: int) -> int:
        """Return the events of the tile of ``q - offset`` before that time."""
        if offset_ms not in self._head_of_offset:
            end = self._q - offset_ms if offset_ms else self._q
            tile = floor_ms(end, self._tile_ms) if offset_ms else self._floor
            self._head_of_offset[offset_ms] = self._add(EdgeSpan(tile, tile, end))
        return self._head_of_offset[offset_ms]

    def _add_both(self, window: Window) -> None:
        """Add head and tail of a short window; if both lie in one tile, all events are head."""
        start, end = window.bounds(self._q)
        tile, border = floor_ms(end, self._tile_ms), ceil_ms(start, self._tile_ms)
        self.heads[window] = self._add(EdgeSpan(tile, np.maximum(tile, start), end))
        high = np.where(border > tile, start, border)
        self.tails[window] = self._add(EdgeSpan(floor_ms(start, self._tile_ms), start, high))

    def _add(self, span: EdgeSpan) -> int:
        self.found.append(span)
        return len(self.found) - 1
