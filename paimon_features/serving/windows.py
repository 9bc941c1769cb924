"""Windows over decoded records: which cells make up a window, and what its features come to.

A window of level ``L`` is cells of level ``L`` from its start to the last whole one, then ever
finer cells up to its end. A sawtooth window ends at ``q``, and takes the open tile whole; other
windows end at a border of tiles.

::

    level 1   |=======|=======|=======|
    level 0                           |===|===|=~~    the open tile
              start                             end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paimon_features.aggregates import EVENT_TIME_MAX, Finished, Reading
from paimon_features.aggregates.fold import NEVER_MS, Ints, fold, newest_tile_end
from paimon_features.columns import Column
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.online.codec import LIFETIME_KEY, RecordLayout, Records, cell_key
from paimon_features.windows import Window, floor_ms

Mask = npt.NDArray[np.bool_]


def cells_before(
    view: CompiledView, level: int, start_ms: int | None, end_ms: int
) -> list[tuple[int, int]]:
    """Ranges of cell keys (from inclusive, to exclusive) that hold ``[start_ms, end_ms)``.

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
    return [(low, high) for low, high in ranges if low < high]


def newest_before(view: CompiledView, layout: RecordLayout, records: Records, end_ms: int) -> Ints:
    """The newest event time of each record before ``end_ms``, the view's horizon.

    NEVER_MS where there is none. The tile that the horizon is in counts whole.
    """
    headers = records.headers
    newest: Ints = headers["event_high"].astype(np.int64)
    if not (newest >= end_ms).any():
        return newest
    top = len(view.levels_ms) - 1
    folded = _fold(layout, records, cells_before(view, top, None, end_ms), [EVENT_TIME_MAX.name])
    column = folded[EVENT_TIME_MAX.name]
    in_cells = np.where(column.mask, column.values, NEVER_MS)
    return np.maximum(in_cells, headers["pruned_high"])


def finish_features(
    layout: RecordLayout, records: Records, features: Sequence[CompiledFeature], q_ms: int
) -> dict[str, Finished]:
    """The features of each record at ``q_ms``, by name; one fold per distinct window."""
    view = layout.view
    windows: dict[Window, list[CompiledFeature]] = {}
    for feature in features:
        windows.setdefault(feature.window, []).append(feature)
    out: dict[str, Finished] = {}
    for window, wanted in windows.items():
        start = None if window.length is None else window.start(q_ms)
        names = {EVENT_TIME_MAX.name: None}
        names.update((name, None) for feature in wanted for name in feature.partials)
        cells = cells_before(view, wanted[0].level, start, window.end(q_ms))
        merged = _fold(layout, records, cells, list(names))
        read_ms = window.read_time(q_ms)
        since_ms = read_ms - newest_tile_end(merged, view.tile_ms)
        reading = Reading(read_ms, since_ms, wanted[0].window_ms)
        for feature in wanted:
            columns = [merged[name] for name in feature.partials]
            out[feature.name] = feature.aggregate.finish(view.scope, columns, reading)
    return out


def _fold(
    layout: RecordLayout,
    records: Records,
    ranges: Sequence[tuple[int, int]],
    names: Sequence[str],
) -> Mapping[str, Column]:
    keys = records.cells.rows["key"]
    inside = np.zeros(len(keys), bool)
    for low, high in ranges:
        inside |= (keys >= low) & (keys < high)
    before = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(inside, out=before[1:])
    cells = records.cells.take(inside)
    partials = [layout.view.partial[name] for name in names]
    return fold(
        partials, layout.columns(cells, names), before[records.offsets], layout.view.tile_ms
    )
