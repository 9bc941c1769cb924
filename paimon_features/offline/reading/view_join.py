"""The features of one view for all rows: joined as they are where that fits into memory, else in
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.lake import Lake
from paimon_features.offline.reading.engine import ViewFeatures
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.partitioned_join import PartitionedView
from paimon_features.offline.reading.spill import ChunkFeatures
from paimon_features.offline.reading.view_reads import ViewJoin, ViewRead
from paimon_features.offline.reading.view_scan import ViewScan

_SHARE_MARGIN = 1.5
"""A sample may miss entities that are frequent."""


def join_view(
    lake: Lake,
    read: ViewRead,
    entity_rows: EntityRows,
    memory_bytes: int,
    spill_folder: str | None,
    tick: Callable[[int], None],
) -> ViewFeatures:
    """Compute the features of a view for all rows; ``tick`` gets numbers of rows, all of them
    in total."""
    if entity_rows.chunks == 1:
        table = _at_once(lake, read, entity_rows, memory_bytes, tick)
        if table is not None:
            features = ChunkFeatures(1, spill_folder)
            features.append(table)
            return features
    return PartitionedView(lake, read, entity_rows, memory_bytes, spill_folder, tick)


def _at_once(
    lake: Lake,
    read: ViewRead,
    entity_rows: EntityRows,
    memory_bytes: int,
    tick: Callable[[int], None],
) -> pa.Table | None:
    """Return the answers, where rows, events and the tiles of a bucket fit into memory together."""
    keys, as_of_ms = entity_rows.keys(0, read)
    join = read.join(keys, as_of_ms)
    keyed = np.flatnonzero(join.entities.codes >= 0)
    needs = read.needs()
    needs.observe(as_of_ms[keyed] if len(keyed) < len(as_of_ms) else as_of_ms, keyed)
    kinds = list(read.keys.values())
    buckets = (
        np.unique(bucket_of(join.entities.columns(), kinds, read.buckets)).tolist()
        if join.entities.count
        else []
    )
    scan = ViewScan(lake, read, needs, buckets)
    room = memory_bytes - len(as_of_ms) * read.row_bytes
    events_bytes, sizes = scan.events_bytes(), scan.buckets_bytes()
    if events_bytes + max(sizes.values(), default=0) > room:
        # others than the requested entities' take no memory
        share = min(_SHARE_MARGIN * scan.share_of(join.entities), 1.0)
        events_bytes = int(share * events_bytes)
        sizes = {bucket: int(share * size) for bucket, size in sizes.items()}
    if events_bytes + max(sizes.values(), default=0) > room:
        return None
    done = 0
    try:
        for events in scan.events(join.event_columns, choice=join.entities):
            join.add_events(events)
            _check_room(join, read, room)
        for group in _groups(sizes, room - events_bytes):
            tiles = scan.tiles(group, join.tile_columns, choice=join.entities)
            joined = join.join_tiles(_watched(tiles, join, read, room))
            done += joined
            tick(joined)
    except _NoRoomError:  # the estimate was wrong
        tick(-done)
        return None
    results = join.table()
    tick(len(as_of_ms) - done)
    return results


class _NoRoomError(Exception):
    """More tiles and events of the requested entities than estimated."""


def _check_room(join: ViewJoin, read: ViewRead, room: int) -> None:
    tile_bytes, event_bytes = read.table_bytes()
    if join.held_tiles * tile_bytes + join.held_events * event_bytes > room:
        raise _NoRoomError


def _watched(
    tables: Iterator[pa.Table], join: ViewJoin, read: ViewRead, room: int
) -> Iterator[pa.Table]:
    for table in tables:
        yield table
        _check_room(join, read, room)


def _groups(sizes: Mapping[int, int], room: int) -> Iterator[list[int]]:
    """Buckets, as many together as fit."""
    group: list[int] = []
    total = 0
    for bucket, size in sorted(sizes.items()):
        if group and total + size > room:
            yield group
            group, total = [], 0
        group.append(bucket)
        total += size
    if group:
        yield group
