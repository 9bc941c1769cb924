"""Tables of random columns: what comes as Arrow equals pypaimon's Python reader."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import Schema

from paimon_features.lake.catalog import Lake
from trainer_bridge.readers.snapshot_reader import SnapshotReader

PLAIN = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), pa.timestamp("ms"), pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="UTC"), pa.decimal128(9, 2),
    pa.decimal128(38, 10),
]  # fmt: skip


def random_type(dice: random.Random, depth: int) -> pa.DataType:
    if depth == 0 or dice.random() < 0.5:
        return dice.choice(PLAIN)
    shape = dice.choice(["list", "struct", "map"])
    if shape == "list":
        return pa.list_(random_type(dice, depth - 1))
    if shape == "map":
        return pa.map_(pa.string(), random_type(dice, 0))
    return pa.struct([(f"s{i}", random_type(dice, depth - 1)) for i in range(dice.randint(1, 3))])


def random_value(dice: random.Random, kind: pa.DataType) -> Any:
    if dice.random() < 0.2:
        return None
    if pa.types.is_list(kind):
        return [random_value(dice, kind.value_type) for _ in range(dice.randrange(4))]
    if pa.types.is_map(kind):
        count = dice.randrange(3)
        return [(f"m{i}", random_value(dice, kind.item_type)) for i in range(count)]
    if pa.types.is_struct(kind):
        return {field.name: random_value(dice, field.type) for field in kind}
    number = dice.randrange(-100, 100)
    if pa.types.is_boolean(kind):
        return number > 0
    if pa.types.is_floating(kind):
        return dice.choice([number / 8, float("inf"), -0.0])
    if pa.types.is_string(kind):
        return "".join(dice.choices("aé€ \n", k=dice.randrange(5)))
    if pa.types.is_binary(kind):
        return bytes(dice.choices(range(256), k=dice.randrange(5)))
    if pa.types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=number * 100)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        step = dt.timedelta(milliseconds=number * 12_345_678_901)
        return dt.datetime(1970, 1, 1, tzinfo=zone) + step
    if pa.types.is_decimal(kind):
        return decimal.Decimal(number * 1007).scaleb(-kind.scale)
    return number


@pytest.mark.parametrize("seed", range(8))
def test_columns_of_any_type_come_as_pypaimon_reads_them(lake: Lake, seed: int) -> None:
    dice = random.Random(seed)
    fields = [pa.field("k", pa.int64(), nullable=False)]
    fields += [(f"c{i}", random_type(dice, 2)) for i in range(6)]
    schema = pa.schema(fields)
    keyed = seed % 2 == 0
    options = {"bucket": "2"} if keyed else {}
    made = Schema.from_pyarrow_schema(schema, primary_keys=["k"] if keyed else [], options=options)
    lake.catalog.create_table("features.t", made, False)
    for start in range(0, 40, 10):
        rows = [
            {"k": start + i, **{f.name: random_value(dice, f.type) for f in list(schema)[1:]}}
            for i in range(15)
        ]
        table = lake.table("t").copy({"write.native.enabled": "false"})
        builder = table.new_batch_write_builder()
        writer, commit = builder.new_write(), builder.new_commit()
        writer.write_arrow(pa.Table.from_pylist(rows, schema))
        commit.commit(writer.prepare_commit())
        writer.close()
        commit.close()
    off = {"read.native.enabled": "false", "scan.native-plan.enabled": "false"}
    reading = lake.table("t").copy(off).new_read_builder()
    wanted: pa.Table = reading.new_read().to_arrow(reading.new_scan().plan().splits())
    with SnapshotReader(lake, "t", batch_size=7, output="arrow", block_rows=8) as reader:
        found = pa.concat_tables([batch.arrow for batch in reader])
    assert [f.type for f in found.schema] == [f.type for f in wanted.schema]
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
