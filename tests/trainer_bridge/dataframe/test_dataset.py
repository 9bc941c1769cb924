"""Datasets of files and tables: what is read, in which batches, as what."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    TableError,
    UnknownNameError,
)
from paimon_features.lake import Lake, append_arrow
from tests.trainer_bridge.leaks import own_threads
from trainer_bridge.dataframe import (
    DataFrame,
    Dataset,
    SparseValue,
    parse,
    rebatch,
    to_sparse,
    unbatch_and_to_sparse,
)

SCHEMA = pa.schema(
    [
        ("A", pa.int64()),
        ("B", pa.list_(pa.float64())),
        ("C", pa.list_(pa.int64())),
        ("D", pa.list_(pa.int64())),
        ("E", pa.list_(pa.list_(pa.int64()))),
        ("word", pa.string()),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "A": list(numbers),
            "B": [[n / 2] * 4 for n in numbers],
            "C": [list(range(n % 3)) for n in numbers],
            "D": [[n] * (n % 4) for n in numbers],
            "E": [[[n], []] if n % 2 else None for n in numbers],
            "word": [f"w{n}" for n in numbers],
        },
        SCHEMA,
    )


FIELDS = [
    DataFrame.Field("A", np.int64),
    DataFrame.Field("B", np.float64, shape=[4]),
    DataFrame.Field("C", np.int64, ragged_rank=1),
    DataFrame.Field("D", np.int64, ragged_rank=1),
    DataFrame.Field("E", ragged_rank=2),
    DataFrame.Field("word", str),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files of 10, 3 and 12 rows, in row groups of 4."""
    for name, (first, count) in {"a": (0, 10), "b": (10, 3), "c": (13, 12)}.items():
        pq.write_table(rows(first, count), tmp_path / f"{name}.parquet", row_group_size=4)
    return tmp_path


def plain(batch: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        name: column.to_list() if isinstance(column, DataFrame.Value) else column.tolist()
        for name, column in batch.items()
    }


def test_batches_hold_the_rows_in_order_as_their_fields_say(files: Path) -> None:
    data = Dataset.from_parquet(files, FIELDS)
    batches = list(data.batch(7))
    assert [len(batch["A"]) for batch in batches] == [7, 7, 7, 4]
    first = 0
    for batch in batches:
        assert list(batch) == ["A", "B", "C", "D", "E", "word"]
        assert batch["B"].shape == (len(batch["A"]), 4)
        assert batch["E"].ragged_rank == 2
        assert plain(batch) == rows(first, len(batch["A"])).to_pydict()
        first += len(batch["A"])
    assert [len(b["A"]) for b in data.batch(7, drop_remainder=True)] == [7, 7, 7]
    assert [field.ragged_rank for field in data.fields] == [0, 0, 1, 1, 2, 0]
    assert not any(field.incomplete for field in data.fields)
    spec = data.fields[1].build_spec()
    assert (spec.dtype, spec.shape) == (np.float64, (4,))


def test_a_table_gives_the_batches_of_its_snapshot(lake: Lake) -> None:
    lake.create_like("samples", SCHEMA)
    for first in (0, 10):
        append_arrow(lake, "samples", rows(first, 10))
    old = Dataset.from_table(lake, "samples", FIELDS, snapshot_id=1)
    assert [plain(batch) for batch in old.batch(10)] == [rows(0, 10).to_pydict()]
    new = Dataset.from_table(lake, "samples", ["A"], num_parallel_reads=2)
    (batch,) = new.batch(30)
    assert sorted(batch["A"].tolist()) == list(range(20))


def test_fields_that_are_not_named_are_not_read(files: Path) -> None:
    path = files / "a.parquet"
    content = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(0)
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema.split(".")[0] == "word":
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = bytes(
                column.total_compressed_size
            )
    path.write_bytes(content)
    found = next(iter(Dataset.from_parquet(path, ["A", "C"]).batch(4)))
    assert plain(found) == rows(0, 4).select(["A", "C"]).to_pydict()
    with pytest.raises(TableError, match=r"(?s)a.parquet, row group 0: .*skip_corrupted_data=True"):
        list(Dataset.from_parquet(path, ["word"]).batch(4))
    lenient = Dataset.from_parquet(path, ["A", "word"], skip_corrupted_data=True)
    assert [b["A"].tolist() for b in lenient.batch(6)] == [[4, 5, 6, 7, 8, 9]]


@pytest.mark.parametrize("threads", [1, 3])
def test_partitions_share_the_row_groups(files: Path, threads: int) -> None:
    seen = []
    for index in range(3):
        part = Dataset.from_parquet(
            str(files / "*.parquet"), ["A"], 3, index, num_parallel_reads=threads
        )
        seen.append([n for batch in part.batch(5) for n in batch["A"].tolist()])
    assert sorted(itertools.chain.from_iterable(seen)) == list(range(25))
    assert seen[0] == [*range(4), *range(10, 13), *range(21, 25)]


def test_to_dense_pads_and_parse_makes_sparse_values(files: Path) -> None:
    data = Dataset.from_parquet(files, FIELDS, to_dense={"D": True, "C": [None, 5]})
    batch = next(iter(data.batch(4).apply(parse())))
    assert batch["D"].tolist() == [[0, 0, 0], [1, 0, 0], [2, 2, 0], [3, 3, 3]]
    assert batch["C"].tolist() == [[0] * 5, [0] * 5, [0, 1, 0, 0, 0], [0] * 5]
    assert isinstance(batch["E"], SparseValue)
    assert batch["E"].indices.tolist() == [[1, 0, 0], [3, 0, 0]]
    assert batch["E"].dense_shape.tolist() == [4, 2, 1]
    with pytest.raises(RequestError, match="a list of 3 items .* does not fit a dense array of 2"):
        next(iter(Dataset.from_parquet(files, ["D"], to_dense={"D": [2]}).batch(4)))
    with pytest.raises(ConfigurationError, match="to_dense=: unknown field 'X'; available: A"):
        Dataset.from_parquet(files, ["A"], to_dense={"X": True})


def test_sparse_values_are_those_of_a_plain_loop(files: Path) -> None:
    batch = next(iter(Dataset.from_parquet(files, FIELDS).batch(25)))
    for name in ("C", "D", "E"):
        found = DataFrame.to_sparse(batch[name])
        cells = []
        for row, outer in enumerate(batch[name].to_list()):
            for i, item in enumerate(outer or []):
                if isinstance(item, list):
                    cells += [((row, i, j), value) for j, value in enumerate(item)]
                else:
                    cells.append(((row, i), item))
        assert [tuple(place) for place in found.indices.tolist()] == [place for place, _ in cells]
        assert found.values.tolist() == [value for _, value in cells]
        dense = np.zeros(found.dense_shape, found.values.dtype)
        dense[tuple(found.indices.T)] = found.values
        assert dense.tolist() == batch[name].to_tensor().tolist()


def test_rows_of_one_come_without_the_dimension_of_rows(files: Path) -> None:
    data = Dataset.from_parquet(files, FIELDS)
    row = list(data.batch(1).apply(unbatch_and_to_sparse()))[3]
    assert int(row["A"]) == 3
    assert row["B"].tolist() == [1.5] * 4
    assert row["D"].indices.tolist() == [[0], [1], [2]]
    assert row["E"].dense_shape.tolist() == [2, 1]
    with pytest.raises(RequestError, match="a batch of 2 rows cannot be unbatched"):
        next(iter(data.batch(2).apply(unbatch_and_to_sparse())))
    assert set(next(iter(data.batch(2).apply(to_sparse())))) == set(row)


def test_rebatching_keeps_every_row_in_order(files: Path) -> None:
    data = Dataset.from_parquet(files, FIELDS)
    whole = rows(0, 25).to_pydict()
    for source in (data.batch(7), data.batch(2), data):
        for size, least in ((5, None), (6, 3), (100, None), (1, None)):
            batches = [plain(batch) for batch in source.rebatch(size, least)]
            sizes = [len(batch["A"]) for batch in batches]
            assert all((least or size) <= n <= size for n in sizes[:-1])
            joined = {name: [v for b in batches for v in b[name]] for name in whole}
            assert joined == whole
    assert [len(b["A"]) for b in data.batch(7).apply(rebatch(8, drop_remainder=True))] == [8, 8, 8]


def test_shuffled_batches_hold_every_row_once_from_a_buffer(files: Path) -> None:
    data = Dataset.from_parquet(files, FIELDS)
    batches = data.shuffle_batch(4, buffer_size=8, seed=3)
    orders = []
    for _ in range(2):
        found = list(batches)
        assert [len(batch["A"]) for batch in found] == [4, 4, 4, 4, 4, 4, 1]
        order = [n for batch in found for n in batch["A"].tolist()]
        assert sorted(order) == list(range(25))
        # a row is drawn when the buffer of 8 has reached it, never before
        assert all(n < 8 + place // 4 * 4 for place, n in enumerate(order))
        for batch in found:
            rest = rows(0, 25).take(batch["A"]).to_pydict()
            assert plain(batch) == rest
        orders.append(order)
    assert orders[0] != orders[1]
    again = data.shuffle_batch(4, 8, seed=3)
    assert [n for b in again for n in b["A"].tolist()] == orders[0]
    same = data.shuffle_batch(4, False, 8, 3, reshuffle_each_iteration=False)
    assert [b["A"].tolist() for b in same] == [b["A"].tolist() for b in same]
    assert sum(len(b["A"]) for b in data.shuffle_batch(4, drop_remainder=True)) == 24


def test_rows_are_drawn_from_all_over_the_buffer() -> None:
    table = pa.table({"x": np.arange(1000)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=50)
    store = pafs._MockFileSystem()
    with store.open_output_stream("x.parquet") as file:
        file.write(sink.getvalue())
    data = Dataset.from_parquet("x.parquet", filesystem=store)
    first = np.concatenate(
        [next(iter(data.shuffle_batch(10, 500, seed=seed)))["x"] for seed in range(100)]
    )
    counts, _ = np.histogram(first, bins=10, range=(0, 500))
    assert counts.sum() == 1000
    assert ((counts - 100) ** 2 / 100).sum() < 27.9  # chi-square of 9 degrees at 0.1 %


def test_nulls_need_a_declaration(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None], "t": [[1], None], "s": ["a", None]})
    pq.write_table(table, tmp_path / "n.parquet")
    with pytest.raises(RequestError, match="column 'x' has a null"):
        list(Dataset.from_parquet(tmp_path, ["x"]).batch(2))
    data = Dataset.from_parquet(tmp_path, fill={"x": 7, "s": "?"}, masks=["x", "t"])
    (batch,) = data.batch(2)
    assert plain(batch) == {
        "x": [1, 7],
        "x_present": [True, False],
        "t": [[1], None],
        "t_present": [True, False],
        "s": ["a", "?"],
    }
    (codes,) = Dataset.from_parquet(tmp_path, ["s"], codes={"s": ["b", "a"]}, fill={"s": -1}).batch(
        2
    )
    assert codes["s"].tolist() == [1, -1]


def test_a_default_value_stands_for_nulls_and_for_columns_that_are_not_there(
    tmp_path: Path, lake: Lake
) -> None:
    Field = DataFrame.Field  # noqa: N806 - as users write it
    old = pa.table({"x": [1, None], "t": pa.array([[1, None], None], pa.list_(pa.int64()))})
    new = pa.table({"x": [3], "word": ["a"], "t": [[4]], "v": [[0.5, 1.5]]})
    pq.write_table(old, tmp_path / "a.parquet")
    pq.write_table(new, tmp_path / "b.parquet")
    fields = [
        Field("x", default_value=-1),
        Field("t", default_value=9),
        Field("word", str, default_value="?"),  # only in the second file
        Field("v", shape=[2], default_value=0.25),
        Field("none", np.float32, default_value=7),  # in no file
        Field("lists", np.int32, ragged_rank=1, default_value=0),
    ]
    options = {"masks": ["t", "none"], "item_masks": ["t"]}
    (batch,) = Dataset.from_parquet(tmp_path, fields, **options).batch(3)
    assert plain(batch) == {
        "x": [1, -1, 3],
        "t": [[1, 9], None, [4]],
        "t_present": [True, False, True],
        "t_present_1": [[True, False], [], [True]],
        "word": ["?", "?", "a"],
        "v": [[0.25, 0.25], [0.25, 0.25], [0.5, 1.5]],
        "none": [7, 7, 7],
        "none_present": [False] * 3,
        "lists": [None, None, None],
    }
    assert batch["none"].dtype == np.float32
    assert batch["lists"].dtype == np.int32
    # a table has its columns of today: files that are older are null there
    lake.create_like("samples", old.schema)
    append_arrow(lake, "samples", old)
    (batch,) = Dataset.from_table(lake, "samples", [*fields[:3], fields[4]]).batch(9)
    assert plain(batch) == {
        "x": [1, -1],
        "t": [[1, 9], None],
        "word": ["?", "?"],
        "none": [7, 7],
    }
    read = Dataset.from_parquet
    for wrong, error, message in (
        (["word"], TableError, "a.parquet.*no column 'word'.*declare a default_value for it"),
        (None, TableError, "has no column 'word'"),
        ([Field("none", default_value=1)], ConfigurationError, "declare its dtype as well"),
        (
            [Field("none", np.int8, default_value=1)],
            ConfigurationError,
            "of rows is unknown",
        ),
        ([Field("x", default_value=0.5)], ConfigurationError, "cannot represent that"),
        (["x", "x"], ConfigurationError, "fields x, x: expected at least one, without duplicates"),
        ([], ConfigurationError, "fields none: expected at least one"),
    ):
        with pytest.raises(error, match=message):
            list(read(tmp_path, wrong).batch(2))
    with pytest.raises(ConfigurationError, match="'x' has both default_value and fill="):
        read(tmp_path, [Field("x", default_value=0)], fill={"x": 1})


def test_breaking_off_ends_the_threads(files: Path) -> None:
    before = own_threads()
    data = Dataset.from_parquet(files, ["A"], num_parallel_reads=2)
    batches = data.batch(2).prefetch(3)
    assert [b["A"].tolist() for b in itertools.islice(batches, 2)] == [[0, 1], [2, 3]]
    gc.collect()
    assert own_threads() <= before
    assert [n for b in batches for n in b["A"].tolist()] == list(range(25))
    assert own_threads() <= before


def test_fields_that_do_not_fit_are_refused(files: Path) -> None:
    Field = DataFrame.Field  # noqa: N806 - as users write it
    for fields, error, message in (
        ([Field("A", np.int32)], ConfigurationError, "dtype int32; .* has int64, which is int64"),
        ([Field("A", ragged_rank=1)], ConfigurationError, "ragged_rank=1.*which is 0 levels"),
        ([Field("C", shape=[2, 2])], ConfigurationError, "no shape"),
        (["Z"], UnknownNameError, "unknown column in .* 'Z'"),
    ):
        with pytest.raises(error, match=message):
            Dataset.from_parquet(files, fields)
    with pytest.raises(ConfigurationError, match="no Parquet file matches"):
        Dataset.from_parquet(str(files / "z*.parquet"))
    with pytest.raises(ConfigurationError, match="partition_index=2 of partition_count=2"):
        Dataset.from_parquet(files, partition_count=2, partition_index=2)
    with pytest.raises(ConfigurationError, match="is incomplete"):
        Field("A").build_spec()
    with pytest.raises(RequestError, match="has a list of 0 items; its shape says 2"):
        list(Dataset.from_parquet(files, [Field("C", shape=[2])]).batch(3))
    assert Field("x", bool, 0) == DataFrame.Field("x", np.bool_, ragged_rank=0, shape=None)
    with pytest.raises(ConfigurationError, match="'x': ragged_rank=-1; expected 0 or more"):
        Field("x", ragged_rank=-1)
    with pytest.raises(ConfigurationError, match=r"'x': shape=\[2, 0\]; expected sizes of 1 or m"):
        Field("x", shape=[2, 0])


def test_options_that_do_not_fit_are_refused(files: Path) -> None:
    data = Dataset.from_parquet(files, ["A", "E"])
    for wrong, message in (
        (lambda: data.batch(0), "batch_size=0: expected at least 1"),
        (lambda: data.batch(1).prefetch(0), "buffer_size=0: expected at least 1"),
        (lambda: data.rebatch(4, 5), "min_batch_size=5: expected 1 to batch_size=4"),
        (lambda: data.rebatch(4, 0), "min_batch_size=0: expected 1 to batch_size=4"),
        (
            lambda: Dataset.from_parquet(files, ["A"], fill={"B": 0}),
            "fill=: unknown field 'B'; available: A",
        ),
        (
            lambda: Dataset.from_parquet([files, "mock:///a.parquet"]),
            "'mock:///a.parquet' and '/.*' are in different stores; read one store at a time",
        ),
        (
            lambda: Dataset.from_parquet("floppy://a/b.parquet"),
            "'floppy://a/b.parquet' is not a URI that Arrow reads .*filesystem=",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            wrong()
    with pytest.raises(RequestError, match=r"pad=\[3\] for lists of rank 2: expected 2 sizes, or"):
        list(Dataset.from_parquet(files, ["E"], to_dense=[3]).batch(5))
    with pytest.raises(RequestError, match="list is not a column of a batch"):
        DataFrame.parse([1, 2])


def test_uris_and_names_of_one_store_are_read_together(files: Path) -> None:
    data = Dataset.from_parquet([f"file://{files}/b.parquet", files / "a.parquet"], ["A"])
    assert [n for b in data.batch(9) for n in b["A"].tolist()] == [10, 11, 12, *range(10)]


def test_all_lists_are_padded_to_the_same_sizes(files: Path) -> None:
    (batch,) = Dataset.from_parquet(files, ["A", "C", "D"], to_dense=[None, 3]).batch(25)
    wanted = rows(0, 25).to_pydict()
    assert batch["A"].tolist() == wanted["A"]
    for name in ("C", "D"):
        assert batch[name].tolist() == [(row + [0] * 3)[:3] for row in wanted[name]]


def test_batches_without_rows_are_left_out_of_what_is_batched_again(files: Path) -> None:
    batches = Dataset.from_parquet(files, ["A", "C"]).batch(10)
    some = batches.map(lambda batch: {name: col[:0] for name, col in batch.items()}
                       if batch["A"][0] == 10 else batch)  # fmt: skip
    found = [plain(batch) for batch in some.rebatch(6)]
    assert [len(batch["A"]) for batch in found] == [6, 6, 3]
    wanted = pa.concat_tables([rows(0, 10), rows(20, 5)]).to_pydict()
    for name in ("A", "C"):
        assert [value for batch in found for value in batch[name]] == wanted[name]


def test_damaged_files_are_an_error_or_skipped(files: Path, caplog: Any) -> None:
    (files / "b.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(TableError, match="b.parquet: .*; skip_corrupted_data=True skips"):
        Dataset.from_parquet(files, ["A"])
    data = Dataset.from_parquet(files, ["A"], skip_corrupted_data=True)
    assert [n for b in data.batch(9) for n in b["A"].tolist()] == [*range(10), *range(13, 25)]
    assert "b.parquet is skipped" in caplog.text
    with pytest.raises(TableError, match="none of the Parquet files can be read: .*b.parquet"):
        Dataset.from_parquet(files / "b.parquet", skip_corrupted_data=True)


def test_columns_are_found_in_any_case_where_requested(files: Path) -> None:
    data = Dataset.from_parquet(
        files, ["a"], field_ignore_case=True, field_map_fn=lambda fields: [*fields, "WORD"]
    )
    assert list(next(iter(data.batch(1)))) == ["a", "WORD"]
