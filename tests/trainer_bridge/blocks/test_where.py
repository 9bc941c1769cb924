"""Conditions on rows: exact, whatever was pruned, and part of the order."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError, TableError
from paimon_features.core.expressions import evaluate, parse
from paimon_features.core.types.schema import (
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
from paimon_features.lake.reading.snapshot_content import Bounds
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.data_files import replace_file
from tests.long_cases import quick_cases
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.readers.snapshot_reader import SnapshotReader

COLUMNS = {
    "day": Int32,
    "k": Int64,
    "n": Int64,
    "x": Float64,
    "country": String,
    "t": Timestamp,
    "born": Date,
    "price": Decimal(8, 2),
}
CONDITIONS = (
    "n > 20",
    "NOT (n > 20)",
    "n = 7 OR n = 31",
    "n IN (3, 9, 200)",
    "n NOT IN (3, 9)",
    "n IS NULL",
    "n IS NOT NULL AND x < 2",
    "x <> 1.5",
    "country = 'a-long-name-of-a-country-3'",
    "country >= 'a-long-name-of-a-country-7' AND day = 2",
    "day = 1",
    "day BETWEEN 1 AND 2 AND n < 10",
    "t >= TIMESTAMP '1970-01-01 00:00:01.000'",
    "born < DATE '1970-01-20'",
    "price > DECIMAL '3.50'",
    "k = 5",
    "k > 30 AND n > 5",
    "n + k > 60",
    "CASE WHEN day = 1 THEN n ELSE x END > 4",
    "day = 77",
    "TRUE",
)


def rows(dice: random.Random, low: int, count: int) -> pa.Table:
    """Values near ``low``, so that files and row groups have bounds of their own."""

    def some(value: Any) -> Any:
        return None if dice.random() < 0.15 else value

    numbers = [low + dice.randrange(12) for _ in range(count)]
    data = {
        "day": pa.array([dice.randrange(4) for _ in numbers], pa.int32()),
        "k": pa.array(numbers),
        "n": pa.array([some(number) for number in numbers], pa.int64()),
        "x": pa.array([some(dice.choice([number / 4, float("nan")])) for number in numbers]),
        "country": pa.array([some(f"a-long-name-of-a-country-{n % 10}") for n in numbers]),
        "t": pa.array([some(number * 50 - 400) for number in numbers], pa.timestamp("ms")),
        "born": pa.array([some(number) for number in numbers], pa.int32()).cast(pa.date32()),
        "price": pa.array(
            [some(decimal.Decimal(number * 7).scaleb(-2)) for number in numbers],
            pa.decimal128(8, 2),
        ),
    }
    return pa.table(data)


Row = tuple[str, dict[str, Column]]


def one_by_one(table: pa.Table) -> list[Row]:
    """Each row as text, and as columns of one value."""
    found = []
    for row in table.to_pylist():
        one = pa.Table.from_pylist([row], table.schema)
        columns = {name: Column.from_arrow(one.column(name)) for name in table.column_names}
        found.append((repr(row), columns))
    return found


def naive(rows: list[Row], condition: str) -> list[str]:
    """The rows for which the condition is true, one by one."""
    expression = parse(condition, COLUMNS)
    kept = []
    for text, columns in rows:
        found = evaluate(expression, columns, 1)
        if found.mask[0] and found.values[0]:
            kept.append(text)
    return sorted(kept)


def filtered(lake: Lake, condition: str) -> list[str]:
    try:
        reader = SnapshotReader(
            lake, "t", where=condition, batch_size=9, output="arrow", block_rows=16
        )
    except TableError as error:
        if "has no rows" in str(error):
            return []
        raise
    with reader:
        found = pa.concat_tables([batch.arrow for batch in reader])
        assert found.num_rows == reader.num_rows
    return sorted(map(repr, found.to_pylist()))


@pytest.mark.parametrize("engine", ["append", "deduplicate", "partial-update"])
@pytest.mark.parametrize("partitioned", quick_cases([False, True], True))
def test_each_condition_selects_the_rows_that_it_is_true_for(
    lake: Lake, engine: str, partitioned: bool
) -> None:
    dice = random.Random(f"{engine} {partitioned}")
    options = {} if engine == "append" else {"bucket": "2", "merge-engine": engine}
    partition = ("day",) if partitioned else ()
    key = () if engine == "append" else (*partition, "k")
    spec = TableSpec(
        "t", COLUMNS, key, partition, {"metadata.stats-mode": "truncate(8)", **options}
    )
    lake.create(spec)
    for low in (0, 5, 20, 22, 40):
        append_arrow(lake, "t", rows(dice, low, 30))
    if engine == "append":
        for path in paths(lake, "k"):
            replace_file(path, row_group_size=4)
    whole = one_by_one(read_arrow(lake, "t", native=False))
    for condition in CONDITIONS:
        assert filtered(lake, condition) == naive(whole, condition), condition


def paths(lake: Lake, column: str) -> list[str]:
    with SnapshotReader(lake, "t", columns=[column], batch_size=1) as reader:
        return [span.path for block in reader.layout.blocks for span in block.spans]


def test_what_is_pruned_is_counted_and_not_opened(lake: Lake) -> None:
    columns = {"day": Int32, "n": Int64}
    lake.create(TableSpec("t", columns, partition_by=("day",)))
    for day in range(4):
        append_arrow(lake, "t", pa.table({"day": [day] * 64, "n": range(day * 64, day * 64 + 64)}))
    for path in paths(lake, "n"):
        replace_file(path, row_group_size=16)
    options: dict[str, Any] = {"batch_size": 8, "block_rows": 16}
    with SnapshotReader(lake, "t", where="day >= 2 AND n > 200", **options) as reader:
        assert sorted(int(n) for batch in reader for n in batch["n"]) == list(range(201, 256))
        assert reader.describe()["where"] == "day >= 2 AND n > 200"
        assert reader.describe()["not_read"] == {
            "files_outside_partitions": 2,
            "files_outside_statistics": 1,
            "rows_filtered": 9,
        }
    with SnapshotReader(lake, "t", where="day = 1 AND n >= 120", **options) as reader:
        assert reader.num_rows == 8
        assert reader.describe()["not_read"]["row_groups_outside_statistics"] == 3


def test_a_newer_row_that_fails_the_condition_still_hides_the_older_one(lake: Lake) -> None:
    lake.create(TableSpec("t", {"k": Int64, "n": Int64}, ("k",), options={"bucket": "1"}))
    append_arrow(lake, "t", pa.table({"k": [1, 2, 3], "n": [10, 10, 10]}))
    append_arrow(lake, "t", pa.table({"k": [1, 3], "n": [0, 11]}))
    with SnapshotReader(lake, "t", where="n > 5", batch_size=3, shuffle=False) as reader:
        (batch,) = reader
    assert sorted(zip(batch["k"], batch["n"], strict=True)) == [(2, 10), (3, 11)]


def test_row_numbers_state_and_resume_are_those_of_the_filtered_rows(lake: Lake) -> None:
    lake.create(TableSpec("t", {"n": Int64}))
    for low in range(0, 200, 50):
        append_arrow(lake, "t", pa.table({"n": range(low, low + 50)}))
    options: dict[str, Any] = {"batch_size": 6, "seed": 4, "where": "n % 3 = 0"}
    with SnapshotReader(lake, "t", **options) as reader:
        assert reader.num_rows == 67
        states, whole = [reader.state_dict()], []
        for batch in reader:
            assert reader.read_columns(["n"])["n"].to_numpy()[batch.row_numbers].tolist() == [
                *batch["n"]
            ]
            whole.append(batch["n"].tolist())
            states.append(reader.state_dict())
    assert sorted(n for batch in whole for n in batch) == list(range(0, 200, 3))
    for consumed, state in enumerate(states[:-1]):
        with SnapshotReader(lake, "t", **options) as reader:
            reader.load_state_dict(state)
            assert [batch["n"].tolist() for batch in reader] == whole[consumed:]
    with (
        SnapshotReader(lake, "t", batch_size=6, where="n%3=0 AND n>=0") as reader,
        pytest.raises(RequestError, match="taken with where='n % 3 = 0', this reader has 'n % 3"),
    ):
        reader.load_state_dict(states[1])
    with (
        SnapshotReader(lake, "t", batch_size=6) as reader,
        pytest.raises(RequestError, match="this reader has None"),
    ):
        reader.load_state_dict(states[1])
    # the same condition, written otherwise
    with SnapshotReader(lake, "t", **{**options, "where": "(n % 3) == 0"}) as reader:
        reader.load_state_dict(states[1])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("n +", "position 4"),
        ("n + 1", "it is int64, expected a condition"),
        ("m > 1", "m"),
        ("size(items) > 1 AND l = 3", "l"),
    ],
)
def test_a_text_that_is_no_condition_is_refused(lake: Lake, where: str, message: str) -> None:
    lake.create(TableSpec("t", {"n": Int64, "items": List(Int64)}))
    append_arrow(lake, "t", pa.table({"n": [1], "items": pa.array([[1]])}))
    with pytest.raises(RequestError, match=f"table 't', where=.*{message}"):
        SnapshotReader(lake, "t", where=where, batch_size=1, output="arrow")


VALUES = st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=6)
LEAVES = st.sampled_from(
    ("a = 1", "a <> 1", "a < 0", "a >= 2", "2 > b", "b IN (0, 3)", "a IS NULL", "b IS NOT NULL")
) | st.sampled_from(("a = b", "a + 1 > 0", "f > 0.5", "f <> 1.0", "NOT f < 1.0", "TRUE"))
TEXTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            "({0[0]}) {0[1]} ({0[2]})".format
        ),
    ),
    max_leaves=5,
)


@given(TEXTS, VALUES, VALUES, VALUES, st.booleans())
def test_bounds_never_rule_out_a_row_that_is_there(
    text: str, a: list[Any], b: list[Any], f: list[Any], knows_nulls: bool
) -> None:
    size = min(len(a), len(b), len(f))
    floats = [float("nan") if x == 3 else x if x is None else float(x) for x in f[:size]]
    table = pa.table(
        {
            "a": pa.array(a[:size], pa.int64()),
            "b": pa.array(b[:size], pa.int64()),
            "f": pa.array(floats, pa.float64()),
        }
    )
    condition = RowFilter(text, table.schema, table="t")
    bounds = {}
    for name in table.column_names:
        there = [x for x in table.column(name).to_pylist() if x is not None and x == x]
        nulls = table.column(name).null_count
        if there:
            bounds[name] = Bounds(min(there), max(there), nulls if knows_nulls else None)
        elif nulls == size:
            bounds[name] = Bounds(nulls=nulls)
    mask = condition.mask(table)
    assert condition.can_hold(bounds) or not mask.any()
    assert not condition.must_hold(bounds) or mask.all()


@pytest.mark.parametrize(
    ("text", "can", "must"),
    [
        # a is 5 to 6, f is 0.5 to 2, d is 1.5 to 3.25, s is "b" to "d"; none has a null
        ("a > 2 + 2", True, True),
        ("7 > a", True, True),
        ("5 > a", False, False),
        ("6 <= a", True, False),
        ("4.5 < a", True, False),
        ("a >= 6.5", False, False),
        ("a < DECIMAL '5.5'", True, False),
        ("a > CASE WHEN FALSE THEN 2 END", False, False),
        ("a <> 7 AND NOT (a = 7)", True, True),
        ("f > 3", False, False),
        ("f < 3", True, False),  # bounds leave NaN out
        ("d BETWEEN 1 AND 4", True, True),
        ("d > 3.5", False, False),
        ("s > concat('d', 'a')", False, False),
        ("lower('E') > s", True, True),
        ("s = 'bb' AND a > 1", True, False),
        ("unknown = 3", True, False),
        ("number = 'x'", True, False),  # bounds of another type than the column's
        ("nan > 3", True, False),
    ],
)
def test_what_bounds_say_of_a_condition(text: str, can: bool, must: bool) -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(8, 2)),
            ("s", pa.string()), ("unknown", pa.int64()), ("number", pa.string()),
            ("nan", pa.float64()),
        ]
    )  # fmt: skip
    bounds = {
        "a": Bounds(5, 6, 0),
        "f": Bounds(0.5, 2.0, 0),
        "d": Bounds(decimal.Decimal("1.50"), decimal.Decimal("3.25"), 0),
        "s": Bounds("b", "d", 0),
        "number": Bounds(1, 5, 0),
        "nan": Bounds(float("nan"), float("nan"), 0),
    }
    condition = RowFilter(text, schema, table="t")
    assert (condition.can_hold(bounds), condition.must_hold(bounds)) == (can, must)


def test_times_in_bounds_are_those_of_utc() -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("d", pa.date32())])
    late = RowFilter("t > TIMESTAMP '2020-01-01 00:00:00.000'", schema, table="t")
    zone = dt.timezone(dt.timedelta(hours=2))
    for hour, possible in ((1, False), (3, True)):
        bound = dt.datetime(2020, 1, 1, hour, tzinfo=zone)
        assert late.can_hold({"t": Bounds(bound, bound, 0)}) == possible
    times = pa.array([0, 1_577_836_800_001_000], pa.timestamp("us", tz="UTC"))
    assert late.mask(pa.table({"t": times})).tolist() == [False, True]
    seconds = pa.table({"t": times.cast(pa.timestamp("s", tz="UTC"), safe=False)})
    assert late.mask(seconds).tolist() == [False, False]
