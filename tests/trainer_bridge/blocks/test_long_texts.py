"""Blocks of long texts: bounded by bytes, and read where a column is too long for one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.batches.arrow_values import take_of_table
from trainer_bridge.blocks import row_groups
from trainer_bridge.readers.snapshot_reader import SnapshotReader

ROWS, COMMITS = 24, 10


def make_documents(lake: Lake, text: str) -> None:
    lake.create(TableSpec("documents", {"x": Int64, "text": String}))
    for commit in range(COMMITS):
        first = commit * ROWS
        texts = [f"{first + row} {text}" for row in range(ROWS)]
        rows = pa.table({"x": np.arange(first, first + ROWS), "text": texts})
        append_arrow(lake, "documents", rows)


@pytest.mark.parametrize(("length", "blocks"), [(10, 1), (20_000, 5)])
def test_small_files_of_long_texts_are_not_joined_beyond_a_number_of_bytes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, length: int, blocks: int
) -> None:
    monkeypatch.setattr(row_groups, "BLOCK_BYTES", 1 << 20)
    make_documents(lake, "a" * length)  # the files are small: equal characters are compressed
    options: dict[str, Any] = {"batch_size": 7, "seed": 1, "output": "arrow"}
    reader = SnapshotReader(lake, "documents", **options)
    assert len(reader.layout.blocks) == blocks
    assert max(block.size for block in reader.layout.blocks) < 1 << 18
    batches = [batch.arrow for batch in reader]
    found = {
        x: text
        for batch in batches
        if batch is not None
        for x, text in zip(*batch.to_pydict().values(), strict=True)
    }
    assert found == {x: f"{x} " + "a" * length for x in range(ROWS * COMMITS)}


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_column_in_several_chunks_are_taken_as_of_one(seed: int) -> None:
    dice = np.random.default_rng(seed)
    texts = [None if dice.random() < 0.1 else str(dice.integers(100)) for _ in range(200)]
    cuts = sorted(dice.integers(0, 201, 4).tolist())
    parts = [texts[a:b] for a, b in zip([0, *cuts], [*cuts, 200], strict=True)]
    column = pa.chunked_array(parts, pa.string())
    rows = pa.table({"t": column, "n": np.arange(200)})
    numbers = dice.integers(0, 200, 50)
    taken = take_of_table(rows, numbers)
    assert taken.equals(rows.combine_chunks().take(pa.array(numbers)))
    assert take_of_table(rows, np.empty(0, np.int64)).num_rows == 0


def test_rows_that_do_not_fit_into_an_array_are_an_error_that_says_so() -> None:
    # one text of 1 MiB, 2,100 times: Arrow's own take returns negative offsets
    long = pa.table({"t": pa.chunked_array([["a" * (1 << 20)], ["b"]])})
    with pytest.raises(RequestError, match="2100 rows have a column of more than 2 GiB"):
        take_of_table(long, np.zeros(2_100, np.int64))
