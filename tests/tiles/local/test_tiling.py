"""Tiles by DuckDB are the naive tiler's, for any definition and any events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import JobError
from paimon_features.core.types.schema import Int64, String, Timestamp, arrow_schema
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import ApproxCountDistinct, Count, Last, Max, Sum
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows, tile_schema
from paimon_features.testing.sizes import cases
from paimon_features.tiles.local import tiling as local_tiling
from paimon_features.tiles.local.backfill import parquet_sql
from paimon_features.tiles.local.sorted_tiling import merged_tiles, sorted_sql
from paimon_features.tiles.local.tiling import skipped_sql, tile_rows, tile_sql
from tests.clicks import clicks_view
from tests.generators import random_view
from tests.tile_jobs import counted_rows, expected_skips, wrong_rows

SOURCE = EventSource(
    "clicks",
    schema={"user": Int64, "t": Int64, "n": Int64, "word": String, "at": Timestamp},
    event_time="t",
)


def view_of(*features: object, **options: object) -> FeatureView:
    entity = Entity("user", keys={"user": Int64})
    return FeatureView("v", source=SOURCE, entity=entity, features=features, **options)  # type: ignore[arg-type]


def clicks(*rows: tuple[object, ...]) -> pa.Table:
    schema = arrow_schema(SOURCE.schema)
    return pa.Table.from_pylist([dict(zip(schema.names, r, strict=False)) for r in rows], schema)


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with DuckDBEngine(threads=1) as opened:
        yield opened


def tiles(
    engine: DuckDBEngine, view: FeatureView, events: pa.Table, **options: int | None
) -> pa.Table:
    engine.add("some_events", events)
    return finished(view, engine.table(tile_sql(view.compiled, "some_events", **options), "tiles"))


def sorted_tiles(
    engine: DuckDBEngine,
    view: FeatureView,
    events: pa.Table,
    partition_days: int | None = 1,
    batch_rows: int = 100_000,
) -> pa.Table:
    """The same by sorting; DuckDB's batches are cut further."""
    engine.add("some_events", events)
    statement = sorted_sql(view.compiled, "some_events", partition_days=partition_days)
    cut = engine.table(statement, "events").combine_chunks().to_batches(max_chunksize=batch_rows)
    several = partition_days is not None
    days = partition_days or 1
    found = [*merged_tiles(view.compiled, cut, days, several=several)]
    return pa.Table.from_batches(found, None if found else tile_schema(view))


def finished(view: FeatureView, rows: pa.Table) -> pa.Table:
    batches = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return pa.Table.from_batches([tile_rows(view.compiled, batch) for batch in batches])


def skipped(engine: DuckDBEngine, view: FeatureView, events: pa.Table) -> pa.Table:
    engine.add("some_events", events)
    return engine.table(skipped_sql(view.compiled, "some_events"), "skipped rows")


@pytest.mark.parametrize("statement", [tile_sql, sorted_sql])
def test_rows_come_by_partition_keys_and_tile(statement: Any) -> None:
    last_line = statement(clicks_view().compiled, "clicks").splitlines()[-1]
    tiles_of_a_day = '("__tile" - (("__tile" % 288) + 288) % 288)'
    assert last_line.rstrip(")") == f'ORDER BY {tiles_of_a_day}, "user", "__tile"'


@cases(60)
@given(st.integers(0, 2**32))
def test_tiles_and_skipped_rows_of_any_view_equal_the_oracle(
    engine: DuckDBEngine, seed: int
) -> None:
    rng = random.Random(seed)
    view = random_view(rng)
    events = random_events(rng, view, rng.choice((1, 5, 80)))
    rows = event_rows(events)
    found = tiles(engine, view, events)
    assert wrong_rows(view, found, rows) == []
    assert found.schema.types == tile_schema(view).types
    assert found.schema.names == tile_schema(view).names
    assert counted_rows(skipped(engine, view, events)) == expected_skips(view, rows)


@cases(20)
@given(st.integers(0, 2**32))
def test_tiles_of_sorted_events_are_those_of_grouped_ones(engine: DuckDBEngine, seed: int) -> None:
    rng = random.Random(seed)
    view = random_view(rng)
    events = random_events(rng, view, rng.choice((1, 5, 80)))
    found = sorted_tiles(engine, view, events, batch_rows=rng.choice((3, 17, 1_000)))
    assert wrong_rows(view, found, event_rows(events)) == []
    assert found.schema.types == tile_schema(view).types
    assert found.schema.names == tile_schema(view).names
    assert len(found) == len(tiles(engine, view, events))


def test_sorted_events_may_be_one_tile_of_many_batches(engine: DuckDBEngine) -> None:
    view = view_of(Count(), Last("word"), Sum("n"), Max("word"), ApproxCountDistinct("word"))
    rows: list[tuple[object, ...]] = [
        (1, 5 + n, n, "abc"[n % 3] if n != 7 else None) for n in range(500)
    ]
    rows += [(1, DAY_MS, 1, "z"), (2, 5, None, None), (0, 5, 7, "q")]
    for size in (1, 7, 1_000):
        found = sorted_tiles(engine, view, clicks(*rows), batch_rows=size)
        assert wrong_rows(view, found, event_rows(clicks(*rows))) == []
        assert found.column("p_rows").to_pylist() == [1, 500, 1, 1]


def test_events_in_another_order_are_an_error_of_sorted_tiles(engine: DuckDBEngine) -> None:
    view = view_of(Count())
    engine.add("some_events", clicks((1, 5, 0), (2, 5, 0), (3, 5, 0)))
    rows = engine.table(sorted_sql(view.compiled, "some_events"), "events").combine_chunks()
    [batch] = rows.take([0, 2, 1]).combine_chunks().to_batches()
    with pytest.raises(JobError, match="expected events in the order of keys and tiles"):
        [*merged_tiles(view.compiled, [batch])]
    with pytest.raises(JobError, match="expected events in the order of keys and tiles"):
        [*merged_tiles(view.compiled, rows.take([1, 0]).combine_chunks().to_batches(1))]


def test_tiles_come_in_the_order_of_the_table_s_key(engine: DuckDBEngine) -> None:
    rng = random.Random(3)
    times = [DAY_MS * rng.randrange(-2, 2) + rng.randrange(DAY_MS) for _ in range(300)]
    events = clicks(*((rng.randrange(-3, 3), t, 1) for t in times))
    found = tiles(engine, view_of(Count()), events).to_pylist()
    keys = [(row["tile_day"], row["user"], row["tile_start"]) for row in found]
    assert keys == sorted(set(keys))
    assert sorted_tiles(engine, view_of(Count()), events).to_pylist() == found
    found = tiles(engine, view_of(Count()), events, partition_days=None).to_pylist()
    pairs = [(row["user"], row["tile_start"]) for row in found]
    assert pairs == sorted(set(pairs))


def test_the_greatest_text_is_the_one_with_the_greatest_code_point(engine: DuckDBEngine) -> None:
    # UTF-16 would put the emoji below U+FFFF
    events = clicks((1, 5, 0, "\uffff"), (1, 5, 0, "\U0001f600"), (1, 5, 0, "z"))
    found = tiles(engine, view_of(Last("word")), events).column("p_last_word").to_pylist()
    assert found[0].endswith("\U0001f600")


def test_a_sum_beyond_64_bits_is_an_error_that_says_so(engine: DuckDBEngine) -> None:
    view = view_of(Sum("n", bound=2**62))
    for compute in (tiles, sorted_tiles):
        for sign in (1, -1):
            far = clicks(*[(1, n, sign * 2**62) for n in range(3)])
            with pytest.raises(JobError, match="leaves 64 bits, where the lake would wrap"):
                compute(engine, view, far)
        with pytest.raises(JobError, match="leaves 64 bits, where the lake would wrap"):
            compute(engine, view, clicks((1, 0, 2**62), (1, 1, 2**62)))
        found = compute(engine, view, clicks((1, 0, 2**62), (1, 1, 2**62 - 1), (2, 1, -(2**62))))
        assert found.column("p_sum_n").to_pylist() == [2**63 - 1, -(2**62)]


def test_texts_that_the_lake_joins_are_joined_by_commas(engine: DuckDBEngine) -> None:
    partial: Any = SimpleNamespace(merge=SimpleNamespace(paimon="listagg"), type=String)
    engine.add("words", pa.table({"word": ["b", None, "a", "b"]}))
    statement = f"SELECT {local_tiling.merged_sql(partial, 'word')} AS all FROM words"
    (found,) = engine.table(statement, "words").column("all").to_pylist()
    assert sorted(found.split(",")) == ["a", "b", "b"]


@cases(20)
@given(st.integers(0, 2**32))
def test_a_merge_that_duckdb_has_no_aggregate_for_is_made_of_lists(
    engine: DuckDBEngine, seed: int
) -> None:
    rng = random.Random(seed)
    view = random_view(rng)
    events = random_events(rng, view, 40)
    kept = {"sum": local_tiling._MERGES["sum"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_tiling, "_MERGES", kept)
        engine.add("some_events", events)
        raw = engine.table(tile_sql(view.compiled, "some_events"), "tiles")
        for partial in view.compiled.partials:
            is_list = pa.types.is_list(raw.schema.field(partial.name).type)
            assert is_list == (partial.merge.paimon != "sum")
        found = finished(view, raw)
    assert wrong_rows(view, found, event_rows(events)) == []
    assert found.schema.types == tile_schema(view).types


def test_files_are_read_in_the_units_of_the_source_whatever_their_path(
    engine: DuckDBEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "event_day=7" / "it's [a] pattern?*"
    folder.mkdir(parents=True)
    events = clicks((1, 5, 0, "a", 1_000), (1, 6, 0, "a", None), (1, 7, 0, "a", 2_000))
    view = view_of(Count(where="at > TIMESTAMP '1970-01-01 00:00:01.500'", name="late"), Last("at"))
    for unit in ("ms", "us"):
        at = events.column("at").cast(pa.timestamp(unit))
        pq.write_table(events.set_column(4, "at", at), folder / f"{unit}.parquet")
        source = parquet_sql([str(folder / f"{unit}.parquet")])
        found = finished(view, engine.table(tile_sql(view.compiled, source), "tiles"))
        assert wrong_rows(view, found, event_rows(events)) == []
        assert found.column("p_rows").to_pylist() == [3]
