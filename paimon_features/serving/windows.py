"""Windows over decoded records: which cells make up a window, and what its features come to.

A window of level ``L`` is cells of level ``L`` from its start to the last whole one, then ever
finer cells up to its end. A sawtooth window ends at ``q``, and takes the open tile whole; other
windows end at a border of tiles.

::

    level 1   |=======|=======|=======|
    level 0                           |===|===|=~~    the open tile
              start                             end

All windows of a read are worked out together, since with few entities each step costs as much
as it would for one: the cells of all of them are put into one list, a segment for each window
and entity, and folded; an aggregate is finished once, for all its windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from paimon_features.aggregates import EVENT_TIME_MAX, Aggregate, Finished, Reading
from paimon_features.aggregates.fold import NEVER_MS, Ints, fold, newest_tile_end
from paimon_features.columns import Column, Mask
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.online.codec import LIFETIME_KEY, Cells, RecordLayout, Records, cell_key
from paimon_features.windows import Window, floor_ms

KeyRange = tuple[int, int]
"""Cell keys, from (inclusive) and to (exclusive)."""


def cells_before(
    view: CompiledView, level: int, start_ms: int | None, end_ms: int
) -> list[KeyRange]:
    """Ranges of cell keys that hold ``[start_ms, end_ms)``, ascending.

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
    """The newest event time of each record before ``end_ms``, the view's horizon.

    NEVER_MS where there is none. The tile that the horizon is in counts whole.
    """
    headers = records.headers
    newest: Ints = headers["event_high"].astype(np.int64)
    if not (newest >= end_ms).any():
        return newest
    top = len(view.levels_ms) - 1
    cells = WindowCells(layout, records.cells, records.offsets)
    folded = cells.fold([cells_before(view, top, None, end_ms)], [EVENT_TIME_MAX.name])
    column = folded[EVENT_TIME_MAX.name]
    in_cells = np.where(column.mask, column.values, NEVER_MS)
    return np.maximum(in_cells, headers["pruned_high"])


class WindowCells:
    """The cells of some rows, to be folded over windows.

    The cells of row ``i`` are ``offsets[i]:offsets[i + 1]``, ascending by key; a row without a
    record has none.
    """

    def __init__(self, layout: RecordLayout, cells: Cells, offsets: Ints) -> None:
        self._layout, self._cells, self._offsets = layout, cells, offsets

    def fold(
        self, windows: Sequence[Sequence[KeyRange]], names: Sequence[str]
    ) -> dict[str, Column]:
        """Partials of each window, shape ``(windows * rows,)``, rows side by side."""
        taken, offsets = self._segments(windows)
        view = self._layout.view
        partials = [view.partial[name] for name in names]
        # what decays counts from the newest tile
        columns = {name: self._column(name, taken) for name in {EVENT_TIME_MAX.name, *names}}
        return fold(partials, columns, offsets, view.tile_ms)

    def _segments(self, windows: Sequence[Sequence[KeyRange]]) -> tuple[Ints, Ints]:
        """Where the cells of each window and row stand; and the offsets of these segments."""
        borders = sorted({key for ranges in windows for pair in ranges for key in pair})
        number = {key: i for i, key in enumerate(borders)}
        most = max(1, *map(len, windows))
        # axes: windows, ranges, (from, to); a window with fewer ranges has empty ones besides
        bounds = np.zeros((len(windows), most, 2), np.int64)
        for window, ranges in zip(bounds, windows, strict=True):
            for place, (low, high) in enumerate(ranges):
                window[place] = number[low], number[high]
        # axes: rows, windows, ranges -> windows, rows, ranges
        places = self._cells_below(borders)[:, bounds].swapaxes(0, 1)
        begins = places[..., 0].ravel()
        sizes = places[..., 1].ravel() - begins
        ends = np.cumsum(sizes)
        taken = np.repeat(begins - (ends - sizes), sizes) + np.arange(sizes.sum())
        offsets = np.zeros(len(windows) * (len(self._offsets) - 1) + 1, np.int64)
        offsets[1:] = ends[most - 1 :: most]
        return taken, offsets

    def _cells_below(self, borders: Sequence[int]) -> Ints:
        """Where in each row's cells the first stands that is not below each border."""
        keys = np.searchsorted(borders, self._keys, side="right")
        # axes: rows, steps between borders
        count, steps = len(self._offsets) - 1, len(borders) + 1
        rows = np.repeat(np.arange(count) * steps, np.diff(self._offsets))
        sizes = np.bincount(rows + keys, minlength=count * steps).reshape(count, steps)
        below: Ints = self._offsets[:-1, None] + np.cumsum(sizes, axis=1)
        return below

    @cached_property
    def _keys(self) -> Ints:
        return np.ascontiguousarray(self._cells.rows["key"])

    def _column(self, name: str, taken: Ints) -> Column:
        layout, cells = self._layout, self._cells
        if name not in layout.texts:
            return layout.column(cells, name).take(taken)
        # a text is decoded by itself: once for all windows, and not where none needs it
        needed = np.zeros(len(cells), np.bool_)
        needed[taken] = True
        return layout.column(cells.take(needed), name).take(np.cumsum(needed)[taken] - 1)


class Values(NamedTuple):
    """A feature of some rows, and where its value is too ill-conditioned to be told."""

    column: pa.Array
    ill_conditioned: Mask | None


@dataclass(frozen=True, slots=True)
class _Finish:
    """Features of one aggregate; ``windows`` are positions in ``WindowFeatures.windows``."""

    aggregate: Aggregate
    features: tuple[CompiledFeature, ...]
    windows: list[int]


class WindowFeatures:
    """Features of one view, arranged so that their windows share every step; to be kept."""

    def __init__(self, view: CompiledView, features: Sequence[CompiledFeature]) -> None:
        self._view = view
        self._levels = {feature.window: feature.level for feature in features}
        self.windows = tuple(self._levels)
        place = {window: i for i, window in enumerate(self.windows)}
        needed: dict[str, set[int]] = {EVENT_TIME_MAX.name: set(place.values())}
        alike: dict[tuple[object, ...], list[CompiledFeature]] = {}
        for feature in features:
            for name in feature.partials:
                needed.setdefault(name, set()).add(place[feature.window])
            length = feature.window_ms if feature.aggregate.by_length else None
            alike.setdefault((id(feature.aggregate), length), []).append(feature)
        self._windows_of = {name: sorted(windows) for name, windows in needed.items()}
        self._folds: dict[tuple[int, ...], list[str]] = {}
        for name, windows in self._windows_of.items():
            self._folds.setdefault(tuple(windows), []).append(name)
        self._finishes = [
            _Finish(found[0].aggregate, tuple(found), [place[f.window] for f in found])
            for found in alike.values()
        ]

    def values(self, cells: WindowCells, q_ms: int, null: Mask) -> dict[str, Values]:
        """The features at ``q_ms`` by name, one value per row, and nothing where ``null``."""
        rows = len(null)
        ranges = [self._ranges(window, q_ms) for window in self.windows]
        merged: dict[str, Column] = {}
        for windows, names in self._folds.items():
            merged.update(cells.fold([ranges[w] for w in windows], names))
        read_ms = np.array([window.read_time(q_ms) for window in self.windows])
        # axes: windows, rows
        ends_ms = newest_tile_end(merged, self._view.tile_ms).reshape(len(self.windows), rows)
        since_ms = read_ms[:, None] - ends_ms
        out: dict[str, Values] = {}
        for group in self._finishes:
            own = group.windows
            columns = [
                self._of_windows(name, merged[name], own, rows)
                for name in group.features[0].partials
            ]
            lengths = {feature.window_ms for feature in group.features}
            reading = Reading(
                np.repeat(read_ms[own], rows),
                since_ms[own].ravel(),
                lengths.pop() if len(lengths) == 1 else None,
            )
            done = group.aggregate.finish(self._view.scope, columns, reading)
            out.update(_apart(group.features, done, null))
        return out

    def _ranges(self, window: Window, q_ms: int) -> list[KeyRange]:
        start = None if window.length is None else window.start(q_ms)
        return cells_before(self._view, self._levels[window], start, window.end(q_ms))

    def _of_windows(self, name: str, column: Column, windows: list[int], rows: int) -> Column:
        """The parts of a folded column that are of these windows."""
        folded = self._windows_of[name]
        if folded == windows:
            return column
        first = np.array([folded.index(window) * rows for window in windows])
        return column.take((first[:, None] + np.arange(rows)).ravel())


def _apart(
    features: Sequence[CompiledFeature], done: Finished, null: Mask
) -> Iterator[tuple[str, Values]]:
    """What was finished together, feature by feature: slices of one Arrow array."""
    column, rows = done.column, len(null)
    if null.any():
        column = Column(column.values, column.mask & ~np.tile(null, len(features)))
    array = column.to_arrow(features[0].type.arrow)
    for i, feature in enumerate(features):
        ill = done.ill_conditioned
        if ill is not None:
            ill = ill[i * rows : (i + 1) * rows] & ~null
        yield feature.name, Values(array.slice(i * rows, rows), ill)
