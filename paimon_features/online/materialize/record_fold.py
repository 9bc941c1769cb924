"""Fold rows of a tile table into records: pure functions of arrays.

A record at snapshot ``s`` contains the entity's rows of all snapshots up to ``s``. So a row is
added to a record if and only if the row's snapshot is newer than the record's: however the
snapshots were divided into passes, and however often a pass is repeated, each row is added
exactly once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Ints
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.definitions.aggregates.fold import NEVER_MS, canonical, fold
from paimon_features.online.store.codec import (
    HEADER,
    INDEX_BIAS,
    LEVEL_SHIFT,
    LIFETIME_KEY,
    Cells,
    RecordLayout,
    cell_keys,
)
from paimon_features.online.store.keys import entity_bytes

TILE_START = "tile_start"


@dataclass(frozen=True, slots=True)
class TileDelta:
    """Rows of a tile table, those of entity ``i`` at ``offsets[i]:offsets[i + 1]``.

    ``entities`` are key bytes, each once; ``cells`` have keys of level 0, one per row, in any
    order; ``snapshots`` are the snapshots that added the rows.
    """

    entities: list[bytes]
    offsets: Ints
    cells: Cells
    snapshots: Ints

    @property
    def newest_ms(self) -> int:
        """The newest event time among the rows; NEVER_MS if there are none."""
        times = self.cells.rows[EVENT_TIME_MAX.name]
        return int(times.max()) if len(times) else NEVER_MS

    def select(self, chosen: Ints) -> TileDelta:
        """Return the entities at ``chosen`` with all their rows."""
        lengths = np.diff(self.offsets)[chosen]
        ends = np.cumsum(lengths)
        rows = np.repeat(self.offsets[chosen] - (ends - lengths), lengths) + np.arange(
            lengths.sum()
        )
        return TileDelta(
            [self.entities[i] for i in chosen.tolist()],
            np.concatenate([[0], ends]),
            self.cells.take(rows),
            self.snapshots[rows],
        )

    def slice(self, start: int, stop: int) -> TileDelta:
        """Return the entities ``start:stop`` with all their rows."""
        first, last = self.offsets[start], self.offsets[stop]
        return TileDelta(
            self.entities[start:stop],
            self.offsets[start : stop + 1] - first,
            Cells(self.cells.rows[first:last], self.cells.text),
            self.snapshots[first:last],
        )


def rows_of_part(layout: RecordLayout, table: pa.Table, part: int, parts: int) -> pa.Table:
    """Return the rows of those entities that fall into ``part`` of ``parts``, by a hash of their
    key."""
    if parts == 1:
        return table
    codes, keys = _entities(layout, table)
    inside = np.fromiter((zlib.crc32(key) % parts == part for key in keys), bool, len(keys))
    return table.filter(pa.array(inside[codes]))


def tile_delta(layout: RecordLayout, tables: Sequence[tuple[int, pa.Table]]) -> TileDelta:
    """Group the rows of (snapshot id, table) pairs by entity."""
    view = layout.view
    names: dict[bytes, int] = {}
    codes: list[Ints] = []
    for _, table in tables:
        local, keys = _entities(layout, table)
        shared = np.fromiter((names.setdefault(key, len(names)) for key in keys), np.int64)
        codes.append(shared[local])
    if not names:
        return TileDelta([], np.zeros(1, np.int64), layout.empty(), np.empty(0, np.int64))
    # files differ in nullability
    rows = pa.concat_tables([table for _, table in tables], promote_options="default")
    code = np.concatenate(codes)
    order = np.argsort(code, kind="stable")
    snapshots = np.repeat([snapshot for snapshot, _ in tables], [len(c) for c in codes])[order]
    columns = {p.name: Column.from_arrow(rows.column(p.name)) for p in view.partials}
    columns = canonical(view.partials, columns)
    tiles = rows.column(TILE_START).to_numpy() // view.tile_ms
    cells = layout.cells(cell_keys(0, tiles), columns).take(order)
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.bincount(code, minlength=len(names)), out=offsets[1:])
    return TileDelta(list(names), offsets, cells, snapshots)


def newest_by_entity(layout: RecordLayout, table: pa.Table) -> tuple[list[bytes], Ints]:
    """Return the key bytes of the entities in rows of a tile table, and their newest event
    times."""
    codes, keys = _entities(layout, table)
    newest = np.full(len(keys), NEVER_MS, np.int64)
    times = Column.from_arrow(table.column(EVENT_TIME_MAX.name)).values
    np.maximum.at(newest, codes, times)
    return keys, newest


def _entities(layout: RecordLayout, table: pa.Table) -> tuple[Ints, list[bytes]]:
    """Return a code for each row, and the key bytes of the entity of each code."""
    keys = layout.view.keys
    codes, uniques = _entity_codes([table.column(name) for name in keys])
    return codes, entity_bytes(list(keys.values()), uniques)


def _entity_codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Ints, list[pa.Array]]:
    """Return a code for each row, equal for equal keys, and the keys of each code."""
    if len(columns) == 1:
        encoded = pc.dictionary_encode(columns[0]).combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0) if encoded.num_chunks else None
        if encoded is None:
            return np.empty(0, np.int64), [pa.array([], columns[0].type)]
        return encoded.indices.to_numpy().astype(np.int64), [encoded.dictionary]
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        one, uniques = _entity_codes([column])
        # made dense at every step, so that the product cannot overflow
        _, code = np.unique(code * len(uniques[0]) + one, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    keys = [pa.concat_arrays(column.take(pa.array(first)).chunks) for column in columns]
    return code, keys


class RetentionBounds:
    """The cells of a view to retain, for records with different high marks.

    ``high_ms`` is the newest event time used to prune each record, shape ``(records,)``.
    """

    def __init__(self, view: CompiledView, high_ms: Ints) -> None:
        marks, which = np.unique(high_ms, return_inverse=True)
        kept = [
            [view.keep_from(level, int(mark)) // step for mark in marks]
            for level, step in enumerate(view.levels_ms)
        ]
        self.first = [np.array(of_level, np.int64)[which] for of_level in kept]
        """Per level: the first tile index retained, shape ``(records,)``."""
        self.known_from: Ints = view.known_from(marks - view.margin_ms)[which]
        """Entities without an event since then can be dropped, shape ``(records,)``."""


def merge(
    layout: RecordLayout,
    old: Sequence[bytes | None],
    new: TileDelta,
    *,
    bucket: int,
    incarnation: int,
    snapshot: int,
    high_ms: int,
) -> list[bytes | None]:
    """Return the records of ``new.entities``, updated by the rows they do not contain yet.

    ``old`` are the stored records. ``new`` is complete for snapshots up to ``snapshot``;
    ``high_ms`` is the newest event time of the bucket up to there. None in the result: nothing
    to write, because the record contains all these rows, or because they are too old for any
    window and there is no record.
    """
    view = layout.view
    count = len(new.entities)
    with_record = np.array([i for i, record in enumerate(old) if record is not None], np.int64)
    records = layout.decode([record for record in old if record is not None])
    headers = np.zeros(count, HEADER)
    for name, value in (
        ("snapshot", -1), ("event_high", NEVER_MS), ("pruned_high", NEVER_MS),
        ("bucket_high", NEVER_MS),
    ):  # fmt: skip
        headers[name] = value
        headers[name][with_record] = records.headers[name]

    owner = np.repeat(np.arange(count), np.diff(new.offsets))
    fresh = new.snapshots > headers["snapshot"][owner]
    touched = np.zeros(count, bool)
    touched[owner[fresh]] = True
    if not touched.any():
        return [None] * count
    # drop strings of other batches before they are copied for every level
    rows = layout.packed(new.cells if fresh.all() else new.cells.take(fresh))
    row_of = owner[fresh]
    times = rows.rows[EVENT_TIME_MAX.name]
    np.maximum.at(headers["event_high"], row_of, times)
    headers["bucket_high"] = np.maximum(headers["bucket_high"], high_ms)
    reach = RetentionBounds(view, headers["bucket_high"])

    old_of = np.repeat(with_record, np.diff(records.offsets))
    stay = touched[old_of]
    old_cells = records.cells if stay.all() else records.cells.take(stay)
    parts = [_kept(layout, reach, old_cells, old_of[stay], headers)]
    parts += [
        _kept(layout, reach, _at_level(layout, rows, level), row_of, headers)
        for level in range(len(view.levels_ms))
    ]
    owners = np.concatenate([of for _, of in parts])
    merged, owners = _fold_equal(layout, layout.concat([cells for cells, _ in parts]), owners)

    headers["bucket"] = bucket
    headers["incarnation"] = incarnation
    headers["snapshot"] = snapshot
    offsets = np.searchsorted(owners, np.arange(count + 1))
    encoded = layout.encode(headers, merged, offsets)
    worth = (np.diff(offsets) > 0) | (headers["event_high"] >= reach.known_from)
    worth[with_record] = True
    write = touched & worth
    return [record if ok else None for record, ok in zip(encoded, write.tolist(), strict=True)]


def _at_level(layout: RecordLayout, rows: Cells, level: int) -> Cells:
    """Return cells of level 0 as cells of ``level``."""
    if level == 0:
        return rows
    ratio = layout.view.levels_ms[level] // layout.view.tile_ms
    out = rows.copy_of_rows()
    out["key"] = cell_keys(level, (out["key"] - INDEX_BIAS) // ratio)
    return Cells(out, rows.text)


def _kept(
    layout: RecordLayout,
    reach: RetentionBounds,
    cells: Cells,
    owners: Ints,
    headers: npt.NDArray[np.void],
) -> tuple[Cells, Ints]:
    """Return the cells that some window can still cover.

    Older cells of the top level go into the lifetime cell if the view has one; else their newest
    event time goes into the header's ``pruned_high``.
    """
    view = layout.view
    keys = cells.rows["key"]
    level = keys >> LEVEL_SHIFT
    index = (keys & ((1 << LEVEL_SHIFT) - 1)) - INDEX_BIAS
    top = len(view.levels_ms) - 1
    inside = level > top  # the lifetime cell
    for at, first in enumerate(reach.first):
        inside |= (level == at) & (index >= first[owners])
    if inside.all():
        return cells, owners
    gone = ~inside & (level == top)
    if gone.any():
        if view.has_lifetime:
            rows = cells.copy_of_rows()
            rows["key"][gone] = LIFETIME_KEY
            cells, inside = Cells(rows, cells.text), inside | gone
        else:
            times = cells.rows[EVENT_TIME_MAX.name][gone]
            np.maximum.at(headers["pruned_high"], owners[gone], times)
    return cells.take(inside), owners[inside]


def _fold_equal(layout: RecordLayout, cells: Cells, owners: Ints) -> tuple[Cells, Ints]:
    """Return the cells sorted by (owner, key), with duplicates folded into one."""
    keys = cells.rows["key"]
    order = np.lexsort((keys, owners))
    keys, owners = keys[order], owners[order]
    if not len(keys):
        return cells, owners
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(keys))
    several = lengths > 1
    if not several.any():
        return cells.take(order), owners
    of_row = np.repeat(several, lengths)
    names = [p.name for p in layout.view.partials]
    offsets = np.concatenate([[0], np.cumsum(lengths[several])])
    columns = layout.columns(cells.take(order[of_row]), names)
    folded = layout.cells(
        keys[starts[several]],
        fold(layout.view.partials, columns, offsets, layout.view.tile_ms),
    )
    # unique cells are copied unchanged, folded ones are placed among them
    single = cells.take(order[starts[~several]])
    both = layout.concat([single, folded])
    place = np.empty(len(starts), np.int64)
    place[~several] = np.arange(len(single))
    place[several] = len(single) + np.arange(len(folded))
    return both.take(place), owners[starts]
