"""Pipelines of random steps give what plain loops over rows give, optimised or not."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    ExpressionError,
    RequestError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.trainer_bridge.leaks import own_threads
from tests.waiting import LONG_S
from trainer_bridge.preprocess import PreprocessPipeline
from trainer_bridge.preprocess.stages import Rows
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler, WeightedRandomSampler
from trainer_bridge.testing.sample_tables import make_samples, x_by_row_number

SIZES = (9, 3, 17, 30, 1, 26)


def square(rows: Rows) -> dict[str, Any]:
    return {"square": rows["x"] * rows["x"]}


def pair(rows: Rows) -> dict[str, Any]:
    return {"pair": np.stack([rows["x"], rows["y"]], axis=1).astype(np.float32)}


def shift(rows: Rows) -> dict[str, Any]:
    return {"y": rows["y"] + 1000}


def length(rows: Rows) -> dict[str, Any]:
    return {"length": pc.binary_length(rows["name"]).to_numpy(zero_copy_only=False)}


def upper(rows: Rows) -> dict[str, Any]:
    return {"name": pc.utf8_upper(rows["name"])}


def is_odd(rows: Rows) -> Any:
    return rows["x"] % 2 == 1


Row = dict[str, Any]
Step = tuple[Callable[[PreprocessPipeline], PreprocessPipeline], Callable[[Row], Row | None]]

STEPS: list[Step] = [
    (lambda p: p.map(square, reads=["x"]), lambda r: r | {"square": r["x"] ** 2}),
    (lambda p: p.map(square), lambda r: r | {"square": r["x"] ** 2}),
    (lambda p: p.map(pair, reads=["x", "y"]), lambda r: r | {"pair": [float(r["x"]), r["y"]]}),
    (lambda p: p.map(shift, reads=["y"]), lambda r: r | {"y": r["y"] + 1000}),
    (lambda p: p.map(length, reads=["name"]), lambda r: r | {"length": len(r["name"])}),
    (lambda p: p.map(upper, reads=["name"]), lambda r: r | {"name": r["name"].upper()}),
    (lambda p: p.filter("x >= 10"), lambda r: r if r["x"] >= 10 else None),
    (lambda p: p.filter("y < 1030"), lambda r: r if r["y"] < 1030 else None),
    (lambda p: p.filter("flag or x < 20"), lambda r: r if r["flag"] or r["x"] < 20 else None),
    (lambda p: p.filter("name <> 'row 12'"), lambda r: r if r["name"] != "row 12" else None),
    (lambda p: p.filter(is_odd, reads=["x"]), lambda r: r if r["x"] % 2 else None),
    (lambda p: p.filter(is_odd), lambda r: r if r["x"] % 2 else None),
]


def plainly(rows: list[Row], steps: list[Step]) -> list[Row]:
    """The reference implementation: each row through each step."""
    kept = []
    for start in rows:
        row: Row | None = dict(start)
        for _, step in steps:
            row = None if row is None else step(row)
        if row is not None:
            kept.append(row)
    return kept


def samples(lake: Lake) -> list[Row]:
    """The rows in the order of their numbers: files come by their random names."""
    numbers = x_by_row_number(lake, "samples")
    return [{"x": n, "y": n / 2, "flag": n % 2 == 0, "name": f"row {n}"} for n in numbers]


def rows_of(batches: Any) -> list[Row]:
    return [
        dict(zip(batch, values, strict=True))
        for batch in batches
        for values in zip(*(column.tolist() for column in batch.values()), strict=True)
    ]


def as_key(row: Row) -> str:
    return str(sorted(row.items()))


@pytest.mark.parametrize("seed", range(6))
def test_random_pipelines_equal_plain_loops_optimised_or_not(
    lake: Lake, tmp_path: Path, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    table = make_samples(lake, SIZES)
    for _ in range(3):
        steps = [STEPS[i] for i in dice.integers(0, len(STEPS), dice.integers(0, 6))]
        expected = plainly(samples(lake), steps)
        if not expected:
            continue
        pipeline, cache_at = PreprocessPipeline(lake, table), dice.integers(0, len(steps) + 2)
        for number, (add, _) in enumerate(steps):
            if number == cache_at:
                pipeline = pipeline.cache(int(dice.integers(0, 3000)), tmp_path / "cache")
            pipeline = add(pipeline)
        numbers = [name for name in expected[0] if name != "name"]
        chosen = dice.permutation(numbers)[: dice.integers(1, len(numbers) + 1)].tolist()
        pipeline = pipeline.select(*chosen).batch(int(dice.integers(1, 12)))
        expected = [{name: row[name] for name in chosen} for row in expected]
        threads = int(dice.integers(0, 3))
        for optimised in (True, False, True):
            with pipeline.open(optimised=optimised, threads=threads, block_rows=12) as batches:
                assert rows_of(batches) == expected, pipeline.explain()
        shuffled = pipeline.shuffle(seed).prefetch(2)
        orders = []
        for optimised in (True, False):
            with shuffled.open(optimised=optimised, threads=threads, block_rows=12) as batches:
                orders.append([rows_of(batches) for _ in range(2)])
        assert orders[0] == orders[1]
        assert Counter(map(as_key, orders[0][0])) == Counter(map(as_key, expected))
        assert Counter(map(as_key, orders[0][1])) == Counter(map(as_key, expected))


def test_the_plan_is_printed_as_written_and_as_it_runs(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    pipeline = (
        PreprocessPipeline(lake, table)
        .map(square, reads=["x"])
        .map(pair, reads=["x", "y"])
        .filter("flag or x > 80")
        .filter(is_odd, reads=["x"])
        .select("pair")
        .shuffle(3)
        .batch(8)
        .augment(lambda batch, dice: {"pair": batch["pair"] + dice.normal()})
        .cache(1000)
        .prefetch(2)
    )
    assert (
        pipeline.explain()
        == """\
as written
  1. read samples at snapshot 6: 4 of 4 columns
  2. map square of x (row by row)
  3. map pair of x, y (row by row)
  4. filter flag or x > 80 (row by row)
  5. filter is_odd of x (row by row)
  6. select pair
  7. shuffle all rows (seed 3)
  8. batch 8
  9. augment <lambda>
  10. cache in 1,000 bytes of memory
  11. prefetch 2 batches

as it runs
  1. read samples at snapshot 6: 3 of 4 columns, where flag or x > 80
  2. shuffle all rows (seed 3): by the reader's order, no buffer
  3. filter is_odd of x (whole blocks)
  4. map pair of x, y (whole blocks)
  5. select pair
  6. cache in 1,000 bytes of memory
  7. batch 8
  8. augment <lambda>
  9. prefetch 2 batches

changes
  - filter flag or x > 80: moved before map square of x, map pair of x, y
  - filter is_odd of x: moved before map square of x, map pair of x, y
  - filter flag or x > 80: pushed into the read
  - map square of x: removed, no stage reads its columns
  - read: name pruned, no stage needs it
  - maps and filters: vectorised over blocks, fused with batch assembly
  - cache: moved before the batch stages, so that random stages are not cached"""
    )


def test_a_map_that_makes_what_a_filter_reads_stays_in_front_of_it(lake: Lake) -> None:
    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES))
        .map(shift, reads=["y"])
        .filter("y > 1010")
    )
    with pipeline.select("x").batch(100).open() as batches:
        assert batches.plan.where == ()
        assert sorted(row["x"] for row in rows_of(batches)) == list(range(21, 86))


def test_only_what_is_needed_is_decoded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer_bridge.blocks.layout import Layout

    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).map(square, reads=["x"]).filter("flag")
    )
    opened = pipeline.select("square").batch(10).open()
    read = set()
    decode = Layout.decode

    def noted(self: Layout, number: int, schema: pa.Schema) -> pa.Table:
        if type(self) is Layout:
            read.update(schema.names)
        return decode(self, number, schema)

    monkeypatch.setattr(Layout, "decode", noted)
    with opened as batches:
        list(batches)
    assert read == {"x"}  # and the flag by the reader, once


def test_a_function_sees_the_columns_that_it_declares_and_cannot_change_them(lake: Lake) -> None:
    table = make_samples(lake, SIZES)

    def peeps(rows: Rows) -> dict[str, Any]:
        return {"z": rows["y"]}

    with pytest.raises(UnknownNameError, match="'y'; available: x") as found:
        PreprocessPipeline(lake, table).map(peeps, reads=["x"]).batch(4).open()
    assert "in function 'test_a_function" not in str(found.value.__notes__)
    assert "in function 'peeps' of a pipeline" in found.value.__notes__

    def writes(rows: Rows) -> dict[str, Any]:
        values: Any = rows["x"]
        values += 1
        return {"x": values}

    with pytest.raises(ValueError, match="read-only"):
        PreprocessPipeline(lake, table).map(writes).batch(4).open()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: [1], "returned a list; expected a mapping"),
        (lambda rows: {"z": 1.0}, "column 'z': one value for"),
        (lambda rows: {"z": np.zeros(3)}, "column 'z': 3 values for \\d+ rows"),
        (lambda rows: {"z": np.array(["a"] * len(rows["x"]))}, "an array of <U1; expected numbers"),
        (lambda rows: {"z": np.zeros((len(rows["x"]), 0))}, r"rows of shape \(0,\) are empty"),
    ],
)
def test_what_is_no_column_is_refused(lake: Lake, function: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        PreprocessPipeline(lake, make_samples(lake, SIZES)).map(function, reads=["x"]).batch(
            4
        ).open()


def test_a_function_that_changes_its_dtype_is_refused(lake: Lake) -> None:
    def moody(rows: Rows) -> dict[str, Any]:
        return {"z": rows["x"].astype(np.float32 if rows["x"].min() % 2 else np.float64)}

    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).map(moody).select("z").batch(4)
    with (
        pipeline.open(block_rows=5) as batches,
        pytest.raises(RequestError, match=r"'z' has rows of float(32|64)\[\] here and of float"),
    ):
        list(batches)


def test_texts_have_to_become_numbers(lake: Lake) -> None:
    with pytest.raises(RequestError, match="'name' is string, which has no tensor form"):
        PreprocessPipeline(lake, make_samples(lake, SIZES)).batch(4).open()


def test_stages_in_the_wrong_order_are_refused(lake: Lake) -> None:
    p = PreprocessPipeline(lake, make_samples(lake, SIZES))

    def noise(batch: Any, dice: Any) -> Any:
        return {}

    for pipeline, message in (
        (p, r"no batch\(size\)"),
        (p.augment(noise).batch(4), r"call batch\(\) before it"),
        (p.batch(4).augment(noise).map(square), "a row stage after a batch stage"),
        (p.batch(4).batch(4), r"at most one batch\(\)"),
        (p.batch(4).cache(1).cache(1), r"at most one cache\(\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            pipeline.open()
    with pytest.raises(ConfigurationError, match="pass memory_bytes=, folder=, or both"):
        p.cache()
    with pytest.raises(ConfigurationError, match=r"batch\(0\)"):
        p.batch(0)
    with pytest.raises(ConfigurationError, match=r"prefetch\(-1\)"):
        p.prefetch(-1)
    with pytest.raises(ConfigurationError, match="apply to a function"):
        p.filter("flag", reads=["flag"])


def test_filters_are_checked_before_anything_is_read(lake: Lake) -> None:
    p = PreprocessPipeline(lake, make_samples(lake, SIZES))
    with pytest.raises(ExpressionError, match="there is no column 'z'"):
        p.filter("z > 1").batch(4).open()
    with pytest.raises(ExpressionError, match="filter 'x \\+ 1' is Int64; expected a condition"):
        p.filter("x + 1").batch(4).open()
    with pytest.raises(RequestError, match=r"filter 'square' returned object\[\] for"):
        p.filter(square).batch(4).open()
    with pytest.raises(TableError, match="no rows at snapshot 6 that pass filter x > 1000"):
        p.filter("x > 1000").select("x").batch(4).open()


def test_filters_see_nulls_and_functions_see_what_fills_them(lake: Lake) -> None:
    lake.create(TableSpec("t", {"x": Int64, "y": Float64, "s": String, "b": Bool}))
    rows = {"x": [1, None, 3, 4], "y": [None, 2.0, None, 4.0], "s": ["a", None, "c", "d"]}
    append_arrow(lake, "t", pa.table(rows | {"b": pa.array([True, None, False, True])}))
    pipeline = PreprocessPipeline(lake, "t", fill={"x": -1, "b": 0}, masks=["y"])
    for optimised in (True, False):

        def found(p: PreprocessPipeline, optimised: bool = optimised) -> list[Row]:
            with p.batch(3).open(optimised=optimised) as batches:
                return rows_of(batches)

        assert found(pipeline.filter("x > 0 or x is null").select("x")) == [
            {"x": 1}, {"x": -1}, {"x": 3}, {"x": 4},
        ]  # fmt: skip
        assert found(pipeline.filter("x is null").select("x", "y_present")) == [
            {"x": -1, "y_present": True}
        ]
        assert found(pipeline.filter("y_present and b").select("y")) == [{"y": 4.0}]
        assert found(pipeline.filter("s <> 'a'").select("y", "b")) == [
            {"y": 0.0, "b": False}, {"y": 4.0, "b": True},
        ]  # fmt: skip
        with pytest.raises(RequestError, match="column 'x' has a null"):
            found(PreprocessPipeline(lake, "t").filter("x is null").select("x"))


def test_a_cache_is_found_by_every_order_and_batch_size(lake: Lake, tmp_path: Path) -> None:
    calls = Counter[str]()

    def counted(rows: Rows) -> dict[str, Any]:
        calls["rows"] += len(rows["x"])
        return {"z": rows["x"] * 2.0}

    table = make_samples(lake, SIZES)
    pipeline = PreprocessPipeline(lake, table).map(counted, reads=["x"], version="1").select("z")
    pipeline = pipeline.cache(folder=tmp_path / "cache")
    with pipeline.batch(8).shuffle(1).open(block_rows=10) as batches:
        first = {row["z"] for row in rows_of(batches)}
        assert batches.cache_stats is not None
        blocks = len(batches.reader.layout.blocks)
        assert (batches.cache_stats.computed, batches.cache_stats.disk_hits) == (blocks, 0)
    assert first == {2.0 * n for n in range(86)}
    calls.clear()
    for rank in range(2):
        other = pipeline.batch(5).shuffle(7)
        with other.open(rank=rank, world_size=2, block_rows=10, epoch=3) as batches:
            assert len(rows_of(batches)) == 43
            assert batches.cache_stats is not None
            assert batches.cache_stats.computed == 0
    assert calls["rows"] <= 2 * 64  # the trials before each
    changed = PreprocessPipeline(lake, table).map(counted, reads=["x"], version="2").select("z")
    with changed.cache(folder=tmp_path / "cache").batch(8).open(block_rows=10) as batches:
        list(batches)
        assert batches.cache_stats is not None
        assert batches.cache_stats.disk_hits == 0


def test_another_snapshot_finds_no_old_rows(lake: Lake, tmp_path: Path) -> None:
    table = make_samples(lake, SIZES)
    pipeline = (
        PreprocessPipeline(lake, table).select("x").cache(folder=tmp_path / "cache").batch(50)
    )
    with pipeline.open() as batches:
        assert len(rows_of(batches)) == 86
    append_arrow(lake, table, pa.table({"x": [86], "y": [43.0], "flag": [True], "name": ["row"]}))
    with pipeline.open() as batches:
        assert sorted(row["x"] for row in rows_of(batches)) == list(range(87))
    with (
        PreprocessPipeline(lake, table, snapshot_id=6)
        .select("x")
        .cache(folder=tmp_path / "cache")
        .batch(50)
        .open() as batches
    ):
        assert len(rows_of(batches)) == 86
        assert batches.cache_stats is not None
        assert batches.cache_stats.computed == 0


def test_a_partial_cache_changes_hits_and_nothing_else(lake: Lake) -> None:
    # blocks of one size: files come by names that are new each time, and of unlike blocks it would
    # be chance which ones fit
    table = make_samples(lake, [10] * 9)
    pipeline = (
        PreprocessPipeline(lake, table)
        .map(pair, reads=["x", "y"])
        .select("pair")
        .batch(7)
        .shuffle(2)
    )
    # a budget that holds next to nothing, so that blocks are decoded again in each epoch; without
    # threads, which decode ahead as far as they get, and so request some blocks once more
    options: dict[str, Any] = {
        "block_rows": 10,
        "byte_budget": 350,
        "canonical_streams": 1,
        "threads": 0,
    }
    with pipeline.open(**options) as batches:
        expected = [rows_of(batches) for _ in range(3)]
    hits = []
    for memory in (100, 300, 100_000):
        with pipeline.cache(memory).open(**options) as batches:
            assert [rows_of(batches) for _ in range(3)] == expected
            assert batches.cache_stats is not None
            assert batches.cache_stats.memory_bytes <= memory
            hits.append(batches.cache_stats.hit_rate)
    assert 0 < hits[0] < hits[1] < hits[2]
    assert hits[2] >= 0.5


def test_augmentation_is_new_in_every_epoch_although_rows_are_cached(lake: Lake) -> None:
    def noise(batch: Any, dice: np.random.Generator) -> Any:
        return {"noise": dice.normal(size=len(batch["x"]))}

    table = make_samples(lake, SIZES)
    pipeline = PreprocessPipeline(lake, table).select("x").batch(10).augment(noise).cache(1 << 20)
    with pipeline.open() as batches:
        epochs = [[batch["noise"].tolist() for batch in batches] for _ in range(2)]
        assert batches.cache_stats is not None
    values = [value for epoch in epochs for batch in epoch for value in batch]
    assert len(set(values)) == 2 * 86
    # and is the same when the run is repeated, whatever runs ahead
    for prefetch, threads in itertools.product((0, 3), (0, 2)):
        with pipeline.prefetch(prefetch).open(threads=threads) as batches:
            again = [[batch["noise"].tolist() for batch in batches] for _ in range(2)]
        assert again == epochs
    with pipeline.open(rank=1, world_size=2) as batches:
        assert next(iter(batches))["noise"][0] not in values


def test_batches_may_be_changed_and_caches_do_not_notice(lake: Lake) -> None:
    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").cache(1 << 20).batch(10)
    )
    for shuffled in (pipeline, pipeline.shuffle(1)):
        with shuffled.open() as batches:
            first = [batch["x"].copy() for batch in batches]
            assert sorted(np.concatenate(first)) == list(range(86))
            for batch in batches:
                batch["x"][:] = -1
            for batch in batches:
                assert batch["x"].min() >= 0


@pytest.mark.parametrize("prefetch", [0, 3])
def test_stopped_before_every_batch_it_goes_on_with_the_rest(lake: Lake, prefetch: int) -> None:
    table = make_samples(lake, SIZES)
    pipeline = PreprocessPipeline(lake, table).filter("x > 5").map(square).select("square").batch(9)
    pipeline = pipeline.shuffle(4).prefetch(prefetch)
    with pipeline.open() as batches:
        whole = [batch["square"].tolist() for batch in batches]
    for stop in range(len(whole) + 1):
        with pipeline.open() as batches:
            iterator = iter(batches)
            assert [next(iterator)["square"].tolist() for _ in range(stop)] == whole[:stop]
            state = batches.state_dict()
            # the same object continues as well, after what was handed out
            rest = [batch["square"].tolist() for batch in batches]
            assert rest == whole[stop:] or stop == len(whole)
        with pipeline.open() as other:
            other.load_state_dict(state)
            rest = [batch["square"].tolist() for batch in other]
            assert rest == whole[stop:] or (stop == len(whole) and other.epoch == 2)
    with (
        pipeline.filter("square > 49").open() as batches,
        pytest.raises(RequestError, match="files"),
    ):
        batches.load_state_dict(state)


def test_ranks_get_disjoint_rows_and_equal_numbers_of_batches(lake: Lake) -> None:
    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).filter(is_odd).select("x").batch(4)
    )
    found = []
    for rank in range(3):
        with pipeline.shuffle(1).open(rank=rank, world_size=3) as batches:
            found.append([batch["x"].tolist() for batch in batches])
    assert len({len(batches) for batches in found}) == 1
    rows = [row for batches in found for batch in batches for row in batch]
    assert sorted(rows) == list(range(1, 86, 2))


def test_without_a_fixed_order_the_same_batches_come(lake: Lake) -> None:
    held_up = -1
    others_came = threading.Event()
    others_came.set()  # also where the function is tried

    def slow(batch: Any) -> Any:
        if batch["x"][0] == held_up:
            assert others_came.wait(LONG_S)
        return batch

    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(10).map_batches(slow)
    )
    pipeline = pipeline.prefetch(4)
    with pipeline.open() as batches:
        expected = [batch["x"].tolist() for batch in batches]
    held_up = expected[0][0]
    with pipeline.open(deterministic=False) as batches:
        for epoch in range(2):
            others_came.clear()
            iterator = iter(batches)
            found = [next(iterator)["x"].tolist()]
            others_came.set()
            with pytest.raises(RequestError, match="no state in the middle"):
                batches.state_dict()
            found += [batch["x"].tolist() for batch in iterator]
            assert found != expected
            assert sorted(found) == sorted(expected)
            assert batches.state_dict()["epoch"] == epoch + 1


def test_breaking_off_leaves_no_thread(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    before = own_threads()
    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(2).prefetch(2)
    for deterministic in (True, False):
        batches = pipeline.open(deterministic=deterministic)
        for _ in batches:
            break
        batches.close()
        assert own_threads() <= before
        next(iter(batches))
        del batches
        assert own_threads() <= before


def test_an_error_of_a_function_comes_where_its_batch_would(lake: Lake) -> None:
    def fails(batch: Any) -> Any:
        if 70 in batch["x"] and len(batch["x"]) == 10:  # not when it is tried
            raise ZeroDivisionError("seventy")
        return batch

    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(10).map_batches(fails)
    )
    with PreprocessPipeline(lake, "samples").select("x").batch(10).open() as batches:
        place = next(i for i, batch in enumerate(batches) if 70 in batch["x"])
    for prefetch in (0, 2):
        with pipeline.prefetch(prefetch).open() as batches:
            iterator = iter(batches)
            for _ in range(place):
                next(iterator)
            with pytest.raises(ZeroDivisionError, match="seventy"):
                next(iterator)


def test_a_sampler_draws_among_the_rows_that_pass(lake: Lake) -> None:
    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).filter("x >= 60").select("x").batch(8)
    )
    with pipeline.open() as batches:
        numbers = batches.read_columns(["x"])["x"]
    assert sorted(numbers) == list(range(60, 86))
    sampler = DifficultyWeightedSampler(np.where(numbers == 70, 1000.0, 1.0), seed=1)
    with pipeline.augment(lambda batch, dice: {"y": batch["x"]}).open(sampler=sampler) as batches:
        drawn = [row for _ in range(20) for row in rows_of(batches)]
        assert batches.spec["sample_weight"] == (np.dtype(np.float32), ())
    counts = Counter(row["x"] for row in drawn)
    assert len(drawn) == 20 * 26
    assert min(counts) >= 60
    assert counts.most_common(1)[0][0] == 70
    assert len({row["sample_weight"] for row in drawn if row["x"] == 70}) == 1


def test_rows_of_a_table_with_a_primary_key_are_merged_before(lake: Lake, tmp_path: Path) -> None:
    lake.create(TableSpec("k", {"id": Int64, "v": Float64}, primary_key=("id",)))
    for version in range(2):
        ids = np.arange(10) + 5 * version
        append_arrow(lake, "k", pa.table({"id": ids, "v": ids + 100.0 * version}))
    pipeline = (
        PreprocessPipeline(lake, "k").filter("v < 110").cache(folder=tmp_path / "cache").batch(4)
    )
    for _ in range(2):
        with pipeline.open() as batches:
            found = {row["id"]: row["v"] for row in rows_of(batches)}
        assert found == {n: float(n + 100 * (n >= 5)) for n in range(10)}


def test_a_sampler_without_loss_weights_adds_no_column(lake: Lake) -> None:
    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(8)
    with pipeline.open() as batches:
        numbers = batches.read_columns(["x"])["x"]
    sampler = WeightedRandomSampler(np.where(numbers < 20, 1.0, 0.0), 50, seed=2)
    with pipeline.open(sampler=sampler) as batches:
        assert list(batches.spec) == ["x"]
        drawn = [row["x"] for row in rows_of(batches)]
    assert len(drawn) == 50
    assert max(drawn) < 20


def test_a_batch_function_that_loses_weighted_rows_is_refused(lake: Lake) -> None:
    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(8)
    first = pipeline.map_batches(lambda batch: {"x": batch["x"][:3]})
    assert "map batches <lambda>" in first.explain()
    sampler = DifficultyWeightedSampler(np.ones(86), seed=1)
    message = r"turned a batch of 8 rows with loss weights into 3 rows; change the rows by map\(\)"
    with first.open(sampler=sampler) as batches, pytest.raises(RequestError, match=message):
        next(iter(batches))
    with first.open() as batches:  # without weights rows may go
        assert [len(batch["x"]) for batch in batches] == [3] * 11


def test_an_epoch_can_be_chosen_and_is_not_begun_twice(lake: Lake) -> None:
    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").shuffle(4).batch(16)
    with pipeline.open() as batches:
        epochs = [[batch["x"].tolist() for batch in batches] for _ in range(3)]
    with pipeline.open() as batches:
        batches.set_epoch(2)
        read = iter(batches)
        assert [next(read)["x"].tolist() for _ in range(2)] == epochs[2][:2]
        batches.set_epoch(2)  # stays where it is
        assert [batch["x"].tolist() for batch in batches] == epochs[2][2:]
        assert batches.epoch == 3
        batches.set_epoch(0)
        assert [batch["x"].tolist() for batch in batches] == epochs[0]


def test_arrow_columns_of_functions_are_those_of_their_chunks(lake: Lake) -> None:
    def letters(rows: Rows) -> dict[str, Any]:
        names = pa.array([f"{x}!" for x in rows["x"]])
        return {"name": pa.chunked_array([names[:1], names[1:]])}

    def some(rows: Rows) -> Any:
        """Null, which is not kept, for each third row."""
        odd = pa.array(rows["x"] % 2 == 1)
        return pc.if_else(pa.array(rows["x"] % 3 == 0), None, odd)

    p = PreprocessPipeline(lake, make_samples(lake, SIZES))
    pipeline = p.map(letters, reads=["x"]).filter(some, reads=["x"]).map(length, reads=["name"])
    pipeline = pipeline.select("x", "length").batch(9)
    for optimised in (True, False):
        with pipeline.open(optimised=optimised) as batches:
            found = sorted((row["x"], row["length"]) for row in rows_of(batches))
        assert found == [(x, len(f"{x}!")) for x in range(86) if x % 2 and x % 3]
    numbers = p.map(lambda rows: {"z": pa.array(rows["x"])}, reads=["x"]).select("z").batch(4)
    with pytest.raises(RequestError, match="'z' is an Arrow array of int64.* as a NumPy array"):
        numbers.open()


def test_a_plan_without_order_and_changes_is_short(lake: Lake) -> None:
    text = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(8).explain()
    assert text.partition("as it runs")[2].split("\n")[1:4] == [
        "  1. read samples at snapshot 6: 1 of 4 columns",
        "  2. select x",
        "  3. batch 8",
    ]
    assert "shuffle" not in text
    assert "prefetch" not in text


def test_filters_that_do_not_fit_their_columns_are_explained(lake: Lake) -> None:
    p = PreprocessPipeline(lake, make_samples(lake, SIZES)).map(pair, reads=["x", "y"])
    message = r"column 'pair' is float32 of shape \(2,\) in each row: expressions do not support it"
    with pytest.raises(ExpressionError, match=message):
        p.filter("pair > 1").batch(4).open()
    with pytest.raises(UnknownNameError, match="unknown column at this stage 'z'"):
        p.map(square, reads=["z"]).batch(4).open()
    seen = itertools.count()

    def moody(rows: Rows) -> Any:
        return rows["x"] % 7 != next(seen) % 7

    with (
        p.filter(moody, reads=["x"]).select("x").batch(4).open() as batches,
        pytest.raises(TableError, match="when they were counted and .* now; a filter has to"),
    ):
        list(batches)


def test_a_cache_does_not_keep_what_came_in_place_of_bad_rows(lake: Lake) -> None:
    pipeline = PreprocessPipeline(lake, make_samples(lake, SIZES)).select("x").batch(4).cache(1000)
    with pytest.raises(ConfigurationError, match="on_bad_file='skip' with a cache"):
        pipeline.open(on_bad_file="skip")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fill": {"y": 0.0}}, ConfigurationError, "those that it was made with"),
        ({"output": "arrow"}, ConfigurationError, "those that it was made with"),
        ({"tag": "a"}, ConfigurationError, "those that it was made with"),
        ({"batch_size": 3}, ConfigurationError, "those that it was made with"),
        ({"shufle": True}, TypeError, "unexpected keyword argument 'shufle'"),
    ],
)
def test_an_option_of_readers_that_a_pipeline_would_ignore_is_refused(
    lake: Lake, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    pipeline = PreprocessPipeline(lake, make_samples(lake, [5])).select("x").batch(4)
    with pytest.raises(error, match=words):
        pipeline.open(**options)
    with pipeline.open() as batches:
        prepared = batches.reader.plan.prepare
    with pytest.raises(ConfigurationError, match="fill: with prepare= the pipeline makes"):
        SnapshotReader(lake, "samples", batch_size=4, prepare=prepared, fill={"y": 0.0})
