"""Lists, texts and decimals of a table through the reader: the same rows as in Arrow."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.lake import Lake, append_arrow
from tests.reference.column_values import reference_item_mask, reference_values
from trainer_bridge.batches.forms import Batch
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import WeightedRandomSampler

SCHEMA = pa.schema(
    [
        ("x", pa.int64()),
        ("tags", pa.list_(pa.int32())),
        ("deep", pa.list_(pa.list_(pa.float32()))),
        ("vector", pa.list_(pa.float32())),
        ("fixed", pa.list_(pa.float32(), 2)),
        ("city", pa.string()),
        ("words", pa.list_(pa.string())),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
    ]
)
CITIES = ["oslo", "rome", "Ä", "bern"]
OPTIONS: dict[str, Any] = {
    "codes": ["city", "words"],
    "scaled": ["price"],
    "masks": ["tags", "city"],
    "item_masks": ["deep"],
    "fill": {"vector": -1},
    "shapes": {"vector": [3]},
    "block_rows": 16,
    "canonical_streams": 4,
}


def random_rows(seed: int, first: int, count: int) -> pa.Table:
    dice = random.Random(seed)
    none = lambda value: None if dice.random() < 0.2 else value  # noqa: E731
    numbers = range(first, first + count)
    start = dt.datetime(1969, 12, 31, tzinfo=dt.UTC)
    columns = {
        "x": list(numbers),
        "tags": [none([n] * dice.randrange(4)) for n in numbers],
        "deep": [
            none([none([none(n / 2)] * dice.randrange(3)) for _ in range(dice.randrange(3))])
            for n in numbers
        ],
        "vector": [none([n, n + 1, n + 2]) for n in numbers],
        "fixed": [[n, -n] for n in numbers],
        "city": [none(dice.choice(CITIES)) for _ in numbers],
        "words": [dice.choices(CITIES, k=dice.randrange(3)) for _ in numbers],
        "price": [Decimal(n * 7 - 99).scaleb(-2) for n in numbers],
        "at": [start + dt.timedelta(microseconds=n * 7_777_777) for n in numbers],
        "day": [dt.date(1960, 1, 1) + dt.timedelta(n * 100) for n in numbers],
    }
    return pa.table(columns, SCHEMA)


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create_like("samples", SCHEMA)
    first = 0
    for count in (9, 30, 1, 17, 26):
        append_arrow(lake, "samples", random_rows(first, first, count))
        first += count
    return "samples"


def plain(column: Any) -> list[Any]:
    found: list[Any] = column.to_lists() if hasattr(column, "to_lists") else column.tolist()
    return found


def naive(reader: SnapshotReader, rows: pa.Table) -> dict[str, list[Any]]:
    """A batch's columns, made of its Arrow rows value by value."""
    wanted = {}
    for name, spec in reader.column_specs().items():
        if name.endswith("_present"):
            source = rows.column(name.removesuffix("_present"))
            wanted[name] = [value.is_valid for value in source]
            continue
        if "_present_" in name:
            wanted[name] = reference_item_mask(rows.column("deep"), spec)
            continue
        column = rows.column(name)
        words = sorted(CITIES, key=str.encode) if name in ("city", "words") else ()
        fill = -1 if name == "vector" else 0
        found = reference_values(column, spec, fill, words)
        wanted[name] = [0 if row is None and not spec.ragged_rank else row for row in found]
    return wanted


def check(reader: SnapshotReader, batch: Batch, rows: pa.Table) -> None:
    assert list(reader.column_specs()) == list(naive(reader, rows))
    for name, wanted in naive(reader, rows).items():
        assert plain(batch[name]) == wanted, name


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("threads", [0, 2])
def test_batches_hold_what_arrow_batches_hold(
    lake: Lake, table: str, shuffle: bool, threads: int
) -> None:
    order: dict[str, Any] = {"batch_size": 10, "seed": 2, "shuffle": shuffle, "threads": threads}
    order |= {"block_rows": 16, "canonical_streams": 4, "pad_last": True}
    with (
        SnapshotReader(lake, table, output="arrow", **order) as arrow,
        SnapshotReader(lake, table, **{**order, **OPTIONS}) as reader,
    ):
        for wanted, batch in zip(arrow, reader, strict=True):
            check(reader, batch, wanted.arrow)
            lists = {"tags", "deep", "deep_present_1", "deep_present_2", "words"}
            assert set(batch.ragged) == lists
            assert batch.columns["vector"].shape == (len(batch), 3)
            assert batch.columns["vector"].flags.c_contiguous


def test_a_resumed_reader_yields_the_rest_with_the_same_codes(lake: Lake, table: str) -> None:
    with SnapshotReader(lake, table, batch_size=7, **OPTIONS) as reader:
        batches = list(reader)
        reader.set_epoch(0)
        state = None
        for _, _ in zip(range(5), reader, strict=False):
            state = json.loads(json.dumps(reader.state_dict()))
        vocabulary = reader.vocabularies["city"]
        assert vocabulary.words.to_pylist() == sorted(CITIES, key=str.encode)
    # the table grows, with new words; the state's snapshot has its codes
    other = random_rows(1, 90, 5).set_column(5, "city", pa.array(["aarau"] * 5))
    append_arrow(lake, table, other)
    with SnapshotReader(lake, table, batch_size=7, **OPTIONS) as reader:
        assert reader.vocabularies["city"].words[0].as_py() == "aarau"
        assert state is not None
        reader.load_state_dict(state)
        assert reader.vocabularies["city"].words.equals(vocabulary.words)
        rest = list(reader)
    assert [plain(b["city"]) for b in rest] == [plain(b["city"]) for b in batches[5:]]
    assert [plain(b["deep"]) for b in rest] == [plain(b["deep"]) for b in batches[5:]]


def test_declared_vocabularies_keep_their_codes_and_refuse_other_words(
    lake: Lake, table: str
) -> None:
    options: dict[str, Any] = {"columns": ["city"], "batch_size": 100, "masks": ["city"]}
    codes = {"city": ["x", *CITIES]}
    (batch,) = SnapshotReader(lake, table, codes=codes, **options)
    present = batch["city_present"]
    assert set(batch["city"][present].tolist()) == {1, 2, 3, 4}
    assert batch["city"].dtype == np.int32
    some = {"city": Vocabulary.of(CITIES[:2], unknown=2)}
    (batch,) = SnapshotReader(lake, table, codes=some, **options)
    assert set(batch["city"].tolist()) == {0, 1, 2}
    with pytest.raises(RequestError, match="column 'city': .* is not among the 2 words"):
        list(SnapshotReader(lake, table, codes={"city": CITIES[:2]}, **options))
    with pytest.raises(ConfigurationError, match="go with output='numpy' only"):
        SnapshotReader(lake, table, codes=["city"], output="arrow", batch_size=1)


def test_samplers_draw_rows_with_lists(lake: Lake, table: str) -> None:
    with SnapshotReader(lake, table, batch_size=20, **OPTIONS) as reader:
        rows = reader.read_columns(SCHEMA.names)
        weighted = reader.with_sampler(WeightedRandomSampler(np.arange(83) + 1.0, 60, seed=1))
        for batch in weighted:
            check(reader, batch, rows.take(batch.row_numbers))


def test_memory_of_lists_counts_against_the_budget(lake: Lake) -> None:
    lake.create_like("long", pa.schema([("tags", pa.list_(pa.int64()))]))
    for _ in range(8):
        append_arrow(lake, "long", pa.table({"tags": [list(range(100))] * 1000}))
    with SnapshotReader(
        lake, "long", batch_size=100, block_rows=1000, canonical_streams=2, byte_budget=8_000_000
    ) as reader:
        assert sum(len(batch["tags"].values) for batch in reader) == 800_000
        assert 800_000 < reader.stats.peak_bytes <= 8_000_000
