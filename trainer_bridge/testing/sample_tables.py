"""Small tables to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader


def sample_rows(first: int, count: int) -> pa.Table:
    """Return rows whose column x counts from ``first`` on; the other columns follow from x."""
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "x": numbers,
            "y": numbers / 2,
            "flag": numbers % 2 == 0,
            "name": [f"row {n}" for n in numbers],
        }
    )


def make_samples(lake: Lake, sizes: Sequence[int]) -> str:
    """Make the append table ``samples``, with one commit and one file for each of the sizes."""
    lake.create(TableSpec("samples", {"x": Int64, "y": Float64, "flag": Bool, "name": String}))
    first = 0
    for size in sizes:
        append_arrow(lake, "samples", sample_rows(first, size))
        first += size
    return "samples"


def x_by_row_number(lake: Lake, table: str) -> list[int]:
    """Return the value of x in each row, by the row's number in the newest snapshot."""
    with SnapshotReader(lake, table, columns=["x"], batch_size=10**6, shuffle=False) as reader:
        numbers: list[int] = np.concatenate([batch["x"] for batch in reader]).tolist()
    return numbers
