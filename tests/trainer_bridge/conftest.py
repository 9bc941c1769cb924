"""Small append tables whose rows say which they are, in files of uneven sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.schema import Bool, Float64, Int64, String
from paimon_features.tables.catalog import Lake
from paimon_features.tables.specs import TableSpec
from paimon_features.tables.writer import append_arrow
from trainer_bridge.reader import SnapshotReader

MakeTable = Callable[[Sequence[int]], str]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "warehouse", "features")


def rows(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "x": numbers,
            "y": numbers / 2,
            "flag": numbers % 2 == 0,
            "name": [f"row {n}" for n in numbers],
        }
    )


@pytest.fixture
def make_table(lake: Lake) -> MakeTable:
    """Makes the table ``samples``, a commit and file for each of the sizes; x counts the rows."""

    def make(sizes: Sequence[int]) -> str:
        lake.create(TableSpec("samples", {"x": Int64, "y": Float64, "flag": Bool, "name": String}))
        first = 0
        for size in sizes:
            append_arrow(lake, "samples", rows(first, size))
            first += size
        return "samples"

    return make


def x_by_row_number(lake: Lake, table: str) -> list[int]:
    """The value of x in each row, by the row's number in the newest snapshot."""
    with SnapshotReader(lake, table, columns=["x"], batch_size=10**6, shuffle=False) as reader:
        found: list[int] = np.concatenate([batch["x"] for batch in reader]).tolist()
    return found
