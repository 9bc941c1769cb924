"""Folding rows into records equals a naive dictionary of cells for any split of the snapshots."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.materialize.record_fold import merge, rows_of_part, tile_delta
from paimon_features.online.store.codec import INDEX_BIAS, LEVEL_SHIFT, RecordLayout
from paimon_features.online.store.keys import entity_bytes
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.sizes import seeds
from tests import generators
from tests.reference.records import ReferenceRecord


def entities_of(layout: RecordLayout, table: pa.Table) -> list[bytes]:
    keys = layout.view.keys
    columns = [pa.concat_arrays([*table.column(name).chunks]) for name in keys]
    return entity_bytes(list(keys.values()), columns) if table.num_rows else []


def cells_of(layout: RecordLayout, record: bytes) -> dict[tuple[int, int], dict[str, Any]]:
    decoded = layout.decode([record])
    names = [p.name for p in layout.view.partials]
    columns = layout.columns(decoded.cells, names)
    out = {}
    keys = decoded.cells.rows["key"].tolist()
    assert keys == sorted(set(keys)), "cells are ascending and unique"
    for i, key in enumerate(keys):
        cell = (key >> LEVEL_SHIFT, (key & ((1 << LEVEL_SHIFT) - 1)) - INDEX_BIAS)
        out[cell] = {n: columns[n].values[i] if columns[n].mask[i] else None for n in names}
    return out


def assert_equal(layout: RecordLayout, record: bytes, naive: ReferenceRecord) -> None:
    header = layout.decode([record]).headers[0]
    assert header["snapshot"] == naive.snapshot
    assert header["event_high"] == naive.event_high
    assert header["pruned_high"] == naive.pruned_high
    assert header["bucket_high"] == naive.bucket_high
    cells = cells_of(layout, record)
    assert cells.keys() == naive.cells.keys()
    for cell, partials in cells.items():
        for name, value in partials.items():
            expected, bound = naive.cells[cell][name], naive.bound(cell, name)
            if bound:
                assert value is not None
                assert abs(value - expected) <= bound, (cell, name, value, expected)
            else:
                assert value == expected, (cell, name)


@pytest.mark.parametrize("seed", seeds(60))
def test_any_split_of_the_snapshots_results_in_the_naive_record(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    compiled, layout = view.compiled, RecordLayout(view.compiled)
    events = event_rows(random_events(rng, view, 40))
    commits: list[tuple[int, pa.Table]] = []
    snapshot = 0
    while events:
        snapshot += rng.randint(1, 3)
        size = rng.randint(1, 12)
        commits.append((snapshot, tile_table(view, events[:size])))
        events = events[size:]
    keys = {at: entities_of(layout, table) for at, table in commits}
    store: dict[bytes, bytes] = {}
    naive: dict[bytes, ReferenceRecord] = {}
    high_ms = -(2**62)
    applied = 0
    # passes overlap at random: some restart from the beginning, as after a crash
    while applied < snapshot:
        target = min(snapshot, applied + rng.randint(1, 6))
        since = rng.choice((0, applied, max(0, applied - 3)))
        group = [(at, table) for at, table in commits if since < at <= target]
        new = tile_delta(layout, group)
        high_ms = max(high_ms, new.newest_ms)
        chosen = [i for i in range(len(new.entities)) if rng.random() < 0.7]
        for some in (np.array(chosen, np.int64), np.arange(len(new.entities))):
            part = new.select(some)
            old = [store.get(entity) for entity in part.entities]
            records = merge(
                layout, old, part, bucket=1, incarnation=0, snapshot=target, high_ms=high_ms
            )
            for entity, record in zip(part.entities, records, strict=True):
                twin = naive.setdefault(entity, ReferenceRecord(compiled))
                rows = naive_rows(keys, entity, group)
                before = entity in store
                changed = twin.apply(rows, target, high_ms)
                if not before and not twin.is_worth_keeping():
                    del naive[entity]
                    changed = False
                assert (record is not None) == changed
                if record is not None:
                    store[entity] = record
                    assert_equal(layout, record, twin)
        applied = target


def naive_rows(
    keys: dict[int, list[bytes]], entity: bytes, group: list[tuple[int, pa.Table]]
) -> list[tuple[int, dict[str, Any]]]:
    return [
        (at, row)
        for at, table in group
        for key, row in zip(keys[at], table.to_pylist(), strict=True)
        if key == entity
    ]


SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "n": Int64, "word": String}, event_time="t"
)
VIEW = FeatureView(
    "v",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[Sum("n", windows=["1h"]), Count(windows=["30d"]), Last("word", windows=["1d"])],
)


def test_parts_of_a_large_delta_contain_each_entity_once_and_completely() -> None:
    events = [
        {"user": u, "t": 1000 * u + i, "n": i, "word": "x"} for u in range(50) for i in (1, 2)
    ]
    layout = RecordLayout(VIEW.compiled)
    table = tile_table(VIEW, events)
    whole = tile_delta(layout, [(1, table)])
    parts = [tile_delta(layout, [(1, rows_of_part(layout, table, i, 4))]) for i in range(4)]
    assert sorted(e for part in parts for e in part.entities) == sorted(whole.entities)
    assert sum(len(part.cells) for part in parts) == len(whole.cells)
    assert all(part.entities for part in parts)


def test_only_missing_snapshots_are_applied_to_a_record_that_is_ahead() -> None:
    # record at 5 (applied 4, 5), then the pass (3, 7] again
    layout = RecordLayout(VIEW.compiled)
    commits = [
        (at, tile_table(VIEW, [{"user": 1, "t": at, "n": 10**at, "word": "w"}]))
        for at in range(4, 8)
    ]

    def step(old: bytes | None, since: int, to: int) -> bytes | None:
        new = tile_delta(layout, [(at, t) for at, t in commits if since < at <= to])
        return merge(layout, [old], new, bucket=0, incarnation=0, snapshot=to, high_ms=100)[0]

    ahead = step(None, 3, 5)
    caught_up = step(ahead, 3, 7)
    assert caught_up == step(None, 3, 7)
    assert caught_up is not None
    assert cells_of(layout, caught_up)[(0, 0)]["p_sum_n"] == 11_110_000
    assert step(caught_up, 3, 7) is None
    assert step(caught_up, 0, 6) is None
