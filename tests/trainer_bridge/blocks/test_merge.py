"""Tables with a primary key, against pypaimon's Python reader, which merges row by row."""

from __future__ import annotations

import decimal
import itertools
import random
import shutil
import string
import unittest.mock
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float64,
    Int32,
    Int64,
    List,
    String,
    Timestamp,
)
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import TableSpec
from trainer_bridge.readers.snapshot_reader import SnapshotReader

KEY_TYPES: Mapping[str, DataType] = {
    "k_int": Int32,
    "k_long": Int64,
    "k_text": String,
    "k_time": Timestamp,
    "k_dec": Decimal(12, 2),
    "k_day": Date,
}
VALUE_TYPES: Mapping[str, DataType] = {
    "v_long": Int64,
    "v_float": Float64,
    "v_text": String,
    "v_flag": Bool,
    "v_time": Timestamp,
    "v_dec": Decimal(15, 3),
    "v_wide": Decimal(30, 3),
    "v_list": List(Int64),
}
FUNCTIONS = {
    "v_long": ["sum", "max", "min", "last_value", "product", "first_value"],
    "v_float": ["sum", "max", "min", "last_non_null_value", "product"],
    "v_text": ["max", "min", "last_value", "first_non_null_value", "listagg"],
    "v_flag": ["bool_or", "bool_and", "last_value"],
    "v_time": ["max", "min", "first_value"],
    "v_dec": ["sum", "max", "min"],
    "v_wide": ["sum", "max", "last_non_null_value"],
    "v_list": ["last_value", "first_value", "last_non_null_value"],
}


def random_value(dice: random.Random, kind: DataType, few: bool) -> Any:
    """A value; of ``few`` different ones, so that keys come again."""
    number = dice.randrange(6) if few else dice.randrange(-40, 40)
    if kind == String:
        letters = string.ascii_letters + "äß€ "
        # blank texts do not count for listagg where files merge, and do where they need not
        return f"k{number}" if few else "t" + "".join(dice.choices(letters, k=dice.randrange(24)))
    if kind.is_decimal:
        return decimal.Decimal(number * 1003).scaleb(-kind.scale)  # type: ignore[attr-defined]
    if kind == Float64:
        return dice.choice([number / 8, number * 1e9, 0.0])
    if kind == Bool:
        return bool(number % 2)
    if kind == Timestamp:
        return number * 100_000_000_007
    if kind == Date:
        return number * 1_000
    if kind.text.startswith("list"):
        return [dice.choice([None, 1, 2]) for _ in range(dice.randrange(4))]
    # keys far apart have to be hashed, near ones not
    return number * (10**9 if few and kind == Int64 and dice.random() < 0.5 else 1)


def random_rows(
    dice: random.Random, columns: Mapping[str, DataType], keys: list[str], count: int, kinds: bool
) -> pa.Table:
    data: dict[str, Any] = {}
    for name, kind in columns.items():
        if name == "op":
            values: list[Any] = dice.choices(["+I", "+U", "-D", "-U"], [6, 2, 2, 1], k=count)
            data[name] = pa.array(values if kinds else ["+I"] * count)
            continue
        key = name in keys
        values = [
            None if not key and dice.random() < 0.25 else random_value(dice, kind, key)
            for _ in range(count)
        ]
        data[name] = pa.array(values, kind.arrow)
    return pa.table(data)


def write(lake: Lake, name: str, rows: pa.Table, native: bool) -> None:
    """One commit, by pypaimon's native writer or its Python one: their files differ."""
    on = str(native).lower()
    table = lake.table(name).copy({"write.native.enabled": on, "commit.native.enabled": on})
    builder = table.new_batch_write_builder()
    writer, commit = builder.new_write(), builder.new_commit()
    writer.write_arrow(rows.cast(lake.schema(name)))
    commit.commit(writer.prepare_commit())
    writer.close()
    commit.close()


def read(lake: Lake, name: str, **options: Any) -> pa.Table:
    """All rows that the reader gives, shuffled, in small batches."""
    settings: dict[str, Any] = {"batch_size": 7, "output": "arrow", "block_rows": 8, **options}
    with SnapshotReader(lake, name, **settings) as reader:
        batches = [batch.arrow for batch in reader]
        table = pa.concat_tables(batches)
        assert table.num_rows == reader.num_rows
    return table


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def oracle(lake: Lake, name: str, columns: list[str] | None = None) -> pa.Table:
    return read_arrow(lake, name, columns, native=False)


def make_random(lake: Lake, dice: random.Random, engine: str) -> tuple[TableSpec, list[str]]:
    keys = dice.sample(sorted(KEY_TYPES), dice.randint(1, 3))
    values = dice.sample(sorted(VALUE_TYPES), dice.randint(2, len(VALUE_TYPES)))
    columns = {name: KEY_TYPES[name] for name in sorted(keys)}
    columns |= {name: VALUE_TYPES[name] for name in values}
    options = {"merge-engine": engine, "bucket": str(dice.randint(1, 3))}
    partition: tuple[str, ...] = ()
    if dice.random() < 0.5:
        columns = {"part": dice.choice([Int32, String]), **columns}
        partition = ("part",)
        keys = ["part", *keys]
    if engine == "deduplicate":
        columns["op"] = String
        options["rowkind.field"] = "op"
    if engine == "aggregation":
        for name in values:
            options[f"fields.{name}.aggregate-function"] = dice.choice(FUNCTIONS[name])
    if engine != "first-row" and dice.random() < 0.4:
        columns["version"] = Int64
        options["sequence.field"] = "version"
        options["sequence.field.sort-order"] = dice.choice(["ascending", "descending"])
    spec = TableSpec("keyed", columns, tuple(keys), partition, options)
    lake.create(spec)
    return spec, keys


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation"])
@pytest.mark.parametrize("seed", range(6))
def test_random_writes_merge_as_pypaimon_merges_them(lake: Lake, engine: str, seed: int) -> None:
    dice = random.Random(f"{engine} {seed}")
    spec, keys = make_random(lake, dice, engine)
    for _ in range(dice.randint(1, 7)):
        rows = random_rows(dice, spec.columns, keys, dice.randint(1, 40), engine == "deduplicate")
        write(lake, spec.name, rows, native=dice.random() < 0.5)
    wanted = oracle(lake, spec.name)
    if "op" in wanted.column_names:
        # pypaimon shows the deletes of a file that nothing merges with
        wanted = wanted.filter(pc.is_in(wanted.column("op"), pa.array(["+I", "+U"])))
    if not wanted.num_rows:
        with pytest.raises(TableError, match="has no rows"):
            read(lake, spec.name)
        return
    assert sorted_rows(read(lake, spec.name)) == sorted_rows(wanted)
    # fewer columns, none of the key among them; from the cache of the first read
    few = dice.sample(sorted(spec.columns), 1)
    assert sorted_rows(read(lake, spec.name, columns=few)) == sorted_rows(wanted.select(few))


def test_a_second_opening_reads_no_keys_and_has_the_same_order(lake: Lake, tmp_path: Path) -> None:
    columns = {"k": Int64, "v": Int64}
    lake.create(TableSpec("keyed", columns, ("k",), options={"bucket": "2"}))
    dice = random.Random(3)
    for _ in range(5):
        write(lake, "keyed", random_rows(dice, columns, ["k"], 60, False), native=True)
    options: dict[str, Any] = {"columns": ["k"], "batch_size": 4, "seed": 2}
    options["cache"] = tmp_path / "masks"
    with SnapshotReader(lake, "keyed", **options) as first:
        wanted = [batch["k"].tolist() for batch in first]
        assert first.describe()["not_read"]["rows_merged_away"] > 0
    (kept,) = (tmp_path / "masks").glob("*.masks")
    with (
        unittest.mock.patch(
            "trainer_bridge.blocks.row_selector.RowSelector.select", side_effect=AssertionError
        ),
        SnapshotReader(lake, "keyed", **options) as second,
    ):
        assert [batch["k"].tolist() for batch in second] == wanted
        assert second.describe()["not_read"] == first.describe()["not_read"]
    kept.write_bytes(b"damaged")
    with SnapshotReader(lake, "keyed", **options) as third:
        assert [batch["k"].tolist() for batch in third] == wanted
    # the folder of a warehouse, lost as a whole
    del options["cache"]
    for _ in range(2):
        with SnapshotReader(lake, "keyed", **options) as reader:
            assert [batch["k"].tolist() for batch in reader] == wanted
        shutil.rmtree(lake.side_folder / "merges")


def test_a_reader_of_a_merged_table_stopped_before_any_batch_yields_the_rest(lake: Lake) -> None:
    columns = {"k": Int64, "n": Int64}
    options = {"bucket": "3", "merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    lake.create(TableSpec("keyed", columns, ("k",), options=options))
    for start in range(0, 60, 10):
        data = {"k": np.arange(start, start + 40), "n": np.ones(40, np.int64)}
        write(lake, "keyed", pa.table(data), native=True)
    settings: dict[str, Any] = {"global_batch_size": 9, "seed": 5, "block_rows": 30}

    def rank(number: int, world: int, state: Any = None) -> Iterator[Any]:
        with SnapshotReader(lake, "keyed", rank=number, world_size=world, **settings) as reader:
            if state is not None:
                reader.load_state_dict(state)
            for batch in reader:
                yield list(zip(batch["k"].tolist(), batch["n"].tolist(), strict=True))

    states, whole = [], []
    with SnapshotReader(lake, "keyed", **settings) as reader:
        for _ in range(len(reader)):
            states.append(reader.state_dict())
            batch = next(iter(reader))
            whole.append(list(zip(batch["k"].tolist(), batch["n"].tolist(), strict=True)))
    # k is in the writes that start at 0, 10, ... 50 and are 40 long
    times = [sum(start <= k < start + 40 for start in range(0, 60, 10)) for k in range(90)]
    assert sorted(itertools.chain(*whole)) == list(enumerate(times))
    for consumed, state in enumerate(states):
        assert list(rank(0, 1, state)) == whole[consumed:]
    ranks = [list(rank(number, 3)) for number in range(3)]
    for number, parts in enumerate(zip(*ranks, strict=True)):
        assert [row for rows in zip(*parts, strict=True) for row in rows] == whole[number]


@pytest.mark.parametrize("column", ["score", "digits", "long", "far"])
@pytest.mark.parametrize("second", [None, "other"])
def test_keys_of_every_kind_merge_as_pypaimon_merges_them(
    lake: Lake, column: str, second: str | None
) -> None:
    values: dict[str, list[Any]] = {
        "score": [0.5, -1.25, 2.0, 1e300],
        "digits": [decimal.Decimal(10**20 + n) for n in range(4)],
        "long": [f"{'x' * 80}{n}" for n in range(4)],  # too long to be padded
        "far": [-(2**62), -1, 5, 2**62],
    }
    kinds = {"score": Float64, "digits": Decimal(30, 0), "long": String, "far": Int64}
    columns = {column: kinds[column], "other": Int64, "n": Int64}
    keys = (column, *([] if second is None else [second]))
    lake.create(TableSpec("keyed", columns, keys, options={"bucket": "1"}))
    kind = lake.schema("keyed").field(column).type
    for turn in range(3):
        data = {
            column: pa.array(values[column][turn % 2 :], kind),
            "other": pa.array([2**61, -(2**61), 0, 7][turn % 2 :]),
            "n": pa.array([10 * turn + number for number in range(4 - turn % 2)]),
        }
        write(lake, "keyed", pa.table(data), native=True)
    wanted = oracle(lake, "keyed")
    assert wanted.num_rows == 4
    assert sorted_rows(read(lake, "keyed")) == sorted_rows(wanted)


def test_sums_of_floats_without_a_null_add_in_the_order_of_writes(lake: Lake) -> None:
    options = {"bucket": "1", "merge-engine": "aggregation"}
    options |= {"fields.x.aggregate-function": "sum", "fields.n.aggregate-function": "product"}
    columns = {"k": Int64, "x": Float64, "n": Float64}
    lake.create(TableSpec("keyed", columns, ("k",), options=options))
    for x in (1e16, 1.0, -1e16, 3.0):  # in another order the sum is another one
        rows = pa.table({"k": [1, 2], "x": [x, x / 4], "n": [x, 2.0]})
        write(lake, "keyed", rows, native=False)
    wanted = oracle(lake, "keyed")
    assert wanted["x"][0].as_py() == 1e16 + 1.0 - 1e16 + 3.0
    assert sorted_rows(read(lake, "keyed")) == sorted_rows(wanted)


def test_deletes_are_left_out_where_the_table_says_so(lake: Lake) -> None:
    columns = {"k": Int64, "n": Int64, "op": String}
    options = {"bucket": "1", "merge-engine": "partial-update", "ignore-delete": "true"}
    lake.create(TableSpec("keyed", columns, ("k",), options=options))
    lake.create(TableSpec("plain", columns, ("k",), options={"bucket": "1", "rowkind.field": "op"}))
    for op, n in (("+I", 3), ("-D", 9)):
        write(lake, "plain", pa.table({"k": [1, 2], "n": [n, 4 + n], "op": [op, "+I"]}), False)
    adopt_files(lake, "plain", "keyed")
    found = read(lake, "keyed", columns=["k", "n"])
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(1, 3), (2, 13)]


@pytest.mark.parametrize(
    ("function", "message"),
    [("listagg", "listagg of a column of type int64; it supports strings only")],
)
def test_a_function_that_does_not_take_the_type_is_an_error(
    lake: Lake, function: str, message: str
) -> None:
    columns = {"k": Int64, "v": Int64}
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": function}
    lake.create(TableSpec("keyed", columns, ("k",), options={"bucket": "1", **options}))
    lake.create(TableSpec("plain", columns, ("k",), options={"bucket": "1"}))
    for value in (1, 2):
        write(lake, "plain", pa.table({"k": [1], "v": [value]}), native=False)
    adopt_files(lake, "plain", "keyed")
    with pytest.raises(TableError, match=message):
        read(lake, "keyed")


def adopt_files(lake: Lake, source: str, target: str) -> None:
    """Give a table that pypaimon does not write the files of another."""
    for folder in ("snapshot", "manifest", "bucket-0"):
        shutil.copytree(f"{lake.path(source)}/{folder}", f"{lake.path(target)}/{folder}")


def test_a_delete_in_a_table_that_folds_is_an_error_that_names_the_file(lake: Lake) -> None:
    columns = {"k": Int64, "n": Int64, "op": String}
    options = {"bucket": "1", "merge-engine": "aggregation"}
    lake.create(TableSpec("keyed", columns, ("k",), options=options))
    lake.create(TableSpec("plain", columns, ("k",), options={"bucket": "1", "rowkind.field": "op"}))
    for op in ("+I", "-D"):
        write(lake, "plain", pa.table({"k": [1, 2], "n": [3, 4], "op": [op, "+I"]}), native=False)
    adopt_files(lake, "plain", "keyed")
    with pytest.raises(TableError, match=r"row 0 of .*\.parquet \(bucket-0\) is a DELETE"):
        read(lake, "keyed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engine": "partial-update", "fields.v.sequence-group": "w"}, "sequence-group"),
        ({"merge-engine": "aggregation", "fields.v.aggregate-function": "rbm64"}, "'rbm64'"),
    ],
)
def test_what_cannot_be_merged_rightly_is_refused(
    lake: Lake, options: dict[str, str], message: str
) -> None:
    columns = {"k": Int64, "v": Int64, "w": Int64}
    lake.create(TableSpec("keyed", columns, ("k",), options={"bucket": "1", **options}))
    lake.create(TableSpec("plain", columns, ("k",), options={"bucket": "1"}))
    for _ in range(2):
        write(lake, "plain", pa.table({"k": [1], "v": [1], "w": [1]}), native=False)
    adopt_files(lake, "plain", "keyed")
    with pytest.raises(TableError, match=message):
        read(lake, "keyed")


def test_an_integer_sum_that_overflows_is_an_error_and_a_decimal_one_null(lake: Lake) -> None:
    columns = {"k": Int64, "n": Int64, "d": Decimal(4, 1)}
    options = {"bucket": "1", "merge-engine": "aggregation"}
    options["fields.default-aggregate-function"] = "sum"
    lake.create(TableSpec("keyed", columns, ("k",), options=options))
    tenth = decimal.Decimal("999.9")
    for n, d in ((1, tenth), (2, tenth), (2**63 - 4, tenth / 3)):
        rows = pa.table({"k": [1], "n": [n], "d": pa.array([d], pa.decimal128(4, 1), safe=False)})
        write(lake, "keyed", rows, native=False)
    # null from the second on, so that the third starts again
    assert read(lake, "keyed", columns=["d"], batch_size=1)["d"].to_pylist() == [
        oracle(lake, "keyed", ["d"])["d"][0].as_py()
    ]
    assert read(lake, "keyed", columns=["n"], batch_size=1)["n"].to_pylist() == [2**63 - 1]
    write(lake, "keyed", pa.table({"k": [1], "n": [1], "d": [None]}), native=False)
    with pytest.raises(TableError, match="bucket-0, column 'n': a sum exceeds int64"):
        read(lake, "keyed", columns=["n"], batch_size=1)
