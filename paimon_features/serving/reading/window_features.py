"""Windows over decoded records: which cells make up a window, and the values of its features.

A window of level ``L`` consists of cells of level ``L`` from its start to the last complete one,
then of ever finer cells up to its end. A sawtooth window ends at the time of the read, and
includes the complete open tile; other windows end at a tile's edge.

::

    level 1   |=======|=======|=======|
    level 0                           |===|===|=~~    the open tile
              start                             end

All windows of a read are computed together, since with few entities a step costs as much for all
of them as for one: the cells of all windows are put into one list, a segment for each window and
entity, and folded; an aggregate is finished once, for all its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedValueError, OnlineStoreError
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import Window, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates.range_folds import FoldPlan, RangeFolds
from paimon_features.definitions.finishing import FeatureColumn, FinishGroup
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.online.store.codec import LIFETIME_KEY, Cells, RecordLayout, Records, cell_key

_KNOWN = 64
"""For how many read times the borders of windows are cached: most reads are as of now."""
Spans = tuple[tuple[int | None, int], ...]
"""Start (None: the beginning) and end of each window."""
KeyRange = tuple[int, int]
"""Cell keys, from (inclusive) and to (exclusive)."""


def cells_before(
    view: CompiledView, level: int, start_ms: int | None, end_ms: int
) -> list[KeyRange]:
    """Return the ranges of cell keys in ``[start_ms, end_ms)``, ascending.

    ``start_ms`` is a multiple of the level's step; None means from the beginning, the lifetime
    cell included.
    """
    steps = view.levels_ms
    ranges = []
    if start_ms is None:
        first = cell_key(level, -(2**54))
        ranges.append((LIFETIME_KEY, LIFETIME_KEY + 1))
    else:
        first = cell_key(level, start_ms // steps[level])
    for at in range(level, -1, -1):
        # the finest cell that has begun before the end counts whole, of others only whole ones
        end = -(-end_ms // steps[at]) if at == 0 else end_ms // steps[at]
        ranges.append((first, cell_key(at, end)))
        if at:
            first = cell_key(at - 1, floor_ms(end_ms, steps[at]) // steps[at - 1])
    return sorted((low, high) for low, high in ranges if low < high)


def newest_before(view: CompiledView, layout: RecordLayout, records: Records, end_ms: int) -> Ints:
    """Return the newest event time of each record before ``end_ms``, the view's horizon.

    NEVER_MS where there is none. The tile that the horizon is in counts whole.
    """
    headers = records.headers
    newest: Ints = headers["event_high"].astype(np.int64)
    if not (newest >= end_ms).any():
        return newest
    top = len(view.levels_ms) - 1
    cells = WindowCells(layout, records.cells, records.offsets)
    folds = cells.folds(Borders.of([cells_before(view, top, None, end_ms)]))
    return np.maximum(folds.newest[0], headers["pruned_high"])


@dataclass(frozen=True, slots=True, eq=False)
class Borders:
    """Where the ranges of some windows begin and end.

    ``keys`` are all borders, ascending; ``bounds``, shape ``(windows, ranges, 2)``, says which of
    them a range begins with (inclusive) and ends before. A window with fewer ranges than another
    is padded with empty ones.
    """

    keys: Ints
    bounds: Ints

    @classmethod
    def of(cls, windows: Sequence[Sequence[KeyRange]]) -> Borders:
        """Return the borders of these windows."""
        borders = sorted({key for ranges in windows for pair in ranges for key in pair})
        number = {key: i for i, key in enumerate(borders)}
        most = max(1, *map(len, windows))
        bounds = np.zeros((len(windows), most, 2), np.int64)
        for window, ranges in zip(bounds, windows, strict=True):
            for place, (low, high) in enumerate(ranges):
                window[place] = number[low], number[high]
        return cls(np.array(borders, np.int64), bounds)


class WindowCells:
    """The cells of some rows, to be folded over windows.

    The cells of row ``i`` are ``offsets[i]:offsets[i + 1]``, ascending by key; a row without a
    record has none. They are the ``PartialRows`` of ``RangeFolds``.
    """

    def __init__(self, layout: RecordLayout, cells: Cells, offsets: Ints) -> None:
        self._layout, self._cells, self.offsets = layout, cells, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def damaged(self, what: str) -> OnlineStoreError:
        """Return the error of a read that met damaged cells."""
        return self._layout.damaged(what)

    def folds(self, borders: Borders) -> RangeFolds:
        """Return the folds over these windows."""
        view = self._layout.view
        return RangeFolds(view.partial, self, self.places(borders), view.tile_ms)

    def places(self, borders: Borders) -> Ints:
        """Return the positions of each window's cells, shape ``(windows, rows, ranges, 2)``.

        The last axis is from (inclusive) and to (exclusive).
        """
        # axes: rows, windows, ranges, (from, to) -> windows, rows, ranges, (from, to)
        return self._cells_below(borders.keys)[:, borders.bounds].swapaxes(0, 1)

    def _cells_below(self, borders: Ints) -> Ints:
        """Return where in each row's cells the first stands that is not below each border."""
        keys = np.searchsorted(borders, self._keys, side="right")
        # axes: rows, steps between borders
        count, steps = len(self), len(borders) + 1
        rows = np.repeat(np.arange(count) * steps, np.diff(self.offsets))
        sizes = np.bincount(rows + keys, minlength=count * steps).reshape(count, steps)
        below: Ints = self.offsets[:-1, None] + np.cumsum(sizes, axis=1)
        return below

    @cached_property
    def _keys(self) -> Ints:
        return np.ascontiguousarray(self._cells.rows["key"])

    def column(self, name: str) -> Column:
        """Return a partial of all cells."""
        return self._layout.column(self._cells, name)

    def taken(self, name: str, taken: Ints) -> Column:
        """Return a partial of these cells."""
        layout, cells = self._layout, self._cells
        if name not in layout.texts:
            return self.column(name).take(taken)
        # strings are decoded one by one: once for all windows, and only those that are needed
        needed = np.zeros(len(cells), np.bool_)
        needed[taken] = True
        return layout.column(cells.take(needed), name).take(np.cumsum(needed)[taken] - 1)


class WindowFeatures:
    """Features of one view, arranged so that their windows share every step; to be kept."""

    def __init__(self, view: CompiledView, features: Sequence[CompiledFeature]) -> None:
        self._view = view
        self._levels = {feature.window: feature.level for feature in features}
        self.windows = tuple(self._levels)
        self.types = {feature.name: feature.type for feature in features}
        place = {window: i for i, window in enumerate(self.windows)}
        needed: dict[str, set[int]] = {}
        for feature in features:
            for name in feature.partials:
                needed.setdefault(name, set()).add(place[feature.window])
        self._plan = FoldPlan(view.partial, needed, len(self.windows))
        self._groups = [
            (group, {name: self._places(name, group) for name in group.features[0].partials})
            for group in FinishGroup.of(features, place)
        ]
        self._known: dict[Spans, Borders] = {}

    def _places(self, name: str, group: FinishGroup) -> list[int] | None:
        """Return where the group's windows are among those for which a partial is folded.

        None if they are all of them, in order.
        """
        folded = self._plan.windows_of[name]
        return None if folded == group.windows else [folded.index(w) for w in group.windows]

    def values(
        self,
        cells: WindowCells,
        as_of_ms: int,
        null: Bools | None,
        own_events: OwnEvents | None = None,
    ) -> dict[str, FeatureColumn]:
        """Return the features at ``as_of_ms`` by name, one value per row, and nothing where
        ``null``, unless an event of a request (``own_events``) is counted there.

        Raises
        ------
        OnlineStoreError
            For a stored text or sketch that cannot be decoded.
        """
        try:
            return self._values(cells, as_of_ms, null, own_events)
        except DamagedValueError as error:
            raise cells.damaged(f"a stored value cannot be decoded ({error})") from error

    def _values(
        self, cells: WindowCells, as_of_ms: int, null: Bools | None, own_events: OwnEvents | None
    ) -> dict[str, FeatureColumn]:
        rows = len(cells)
        folds = cells.folds(self._borders(as_of_ms))
        merged = self._plan.fold(folds)
        # axes: windows, rows
        read_ms = np.array([window.read_time(as_of_ms) for window in self.windows])[:, None]
        newest_end_ms = floor_ms(folds.newest, self._view.tile_ms) + self._view.tile_ms
        out: dict[str, FeatureColumn] = {}
        for group, places_of in self._groups:
            columns = [_of_windows(merged[name], of, rows) for name, of in places_of.items()]
            ends_ms = newest_end_ms[group.windows]
            out.update(
                group.finish(
                    self._view, columns, as_of_ms, read_ms[group.windows], ends_ms, null, own_events
                )
            )
        return out

    def _borders(self, as_of_ms: int) -> Borders:
        """Return the borders of all windows; they stay the same for as long as ``as_of_ms`` is in a
        tile."""
        spans = window_spans(self._view, self.windows, as_of_ms)
        borders = self._known.get(spans)
        if borders is None:
            levels = [self._levels[window] for window in self.windows]
            borders = borders_of(self._view, levels, spans)
            if len(self._known) >= _KNOWN:
                self._known = {}  # a new one: another thread may be reading the old
            self._known[spans] = borders
        return borders


def window_spans(
    view: CompiledView, windows: Sequence[Window], as_of_ms: int, horizon_ms: int | None = None
) -> Spans:
    """Return the start and end of each window; with ``horizon_ms`` one more, from the beginning to
    there.

    A start is None for a lifetime, an end the first in its tile with the same cells: spans stay the
    same for as long as ``as_of_ms`` is in a tile.
    """
    tile_ms = view.tile_ms
    spans: list[tuple[int | None, int]] = [
        (
            None if window.length is None else window.start(as_of_ms),
            _first_in_tile(window.end(as_of_ms), tile_ms),
        )
        for window in windows
    ]
    if horizon_ms is not None:
        spans.append((None, _first_in_tile(horizon_ms, tile_ms)))
    return tuple(spans)


def borders_of(view: CompiledView, levels: Sequence[int], spans: Spans) -> Borders:
    """Return the borders of windows of these levels and spans."""
    return Borders.of(
        [
            cells_before(view, level, start, end)
            for level, (start, end) in zip(levels, spans, strict=True)
        ]
    )


def _first_in_tile(end_ms: int, tile_ms: int) -> int:
    """Return the first end at which a window has the same cells: within a tile they stay the
    same."""
    start_ms = floor_ms(end_ms, tile_ms)
    return start_ms if start_ms == end_ms else start_ms + 1


def _of_windows(column: Column, places: list[int] | None, rows: int) -> Column:
    """Return the parts of a folded column that are of some windows."""
    if places is None or not rows:
        return column
    # axes: windows, rows
    values = column.values.reshape(-1, rows)[places].ravel()
    valid = column.valid
    return Column(values, None if valid is None else valid.reshape(-1, rows)[places].ravel())
