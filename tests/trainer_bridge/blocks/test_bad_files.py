"""Files that are missing, cut off or broken: the error names them, a declared policy skips them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    SnapshotExpiredError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Int32, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.data_files import replace_file
from trainer_bridge.readers.snapshot_reader import SnapshotReader

OPTIONS: dict[str, Any] = {"columns": ["n"], "block_rows": 16, "canonical_streams": 2, "seed": 1}


def make(lake: Lake) -> list[Path]:
    """An append table of four files of 30 rows; row i of file j has n = 100 * j + i."""
    lake.create(TableSpec("t", {"part": Int32, "n": Int64}, partition_by=("part",)))
    for number in range(4):
        values = np.arange(30) + 100 * number
        append_arrow(lake, "t", pa.table({"part": np.full(30, number, np.int32), "n": values}))
    with SnapshotReader(lake, "t", batch_size=1, **OPTIONS) as reader:
        return [Path(block.spans[0].path) for block in reader.layout.blocks]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def scramble(path: Path) -> None:
    """Break the pages and leave length and footer as they are."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    content = bytearray(path.read_bytes())
    first = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
    end = first + sum(column.total_compressed_size for column in columns)
    content[first:end] = b"\xff" * (end - first)
    path.write_bytes(bytes(content))


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def read(lake: Lake, **options: Any) -> tuple[list[list[int]], SnapshotReader]:
    with SnapshotReader(lake, "t", **{"batch_size": 8, **OPTIONS, **options}) as reader:
        return [batch["n"].tolist() for batch in reader], reader


@pytest.mark.parametrize("harm", [cut, scramble, Path.unlink])
@pytest.mark.parametrize("where", [None, "n >= 0"])
def test_the_error_names_table_snapshot_split_and_file_and_what_to_do(
    lake: Lake, harm: Any, where: str | None
) -> None:
    paths = make(lake)
    harm(paths[2])
    message = rf"table 't', snapshot 4,.* file {paths[2]} \(part=2/bucket-0\): .*on_bad_file='skip'"
    with pytest.raises(TableError, match=message) as error:
        read(lake, where=where)
    assert isinstance(error.value, SnapshotExpiredError) == (harm is Path.unlink)


def test_a_file_that_breaks_where_rows_are_filtered_is_left_out_and_reported(lake: Lake) -> None:
    paths = make(lake)
    scramble(paths[2])
    batches, reader = read(lake, where="n % 2 = 0", on_bad_file="skip")
    assert sorted(flat(batches)) == [*range(0, 30, 2), *range(100, 130, 2), *range(300, 330, 2)]
    assert list(reader.describe()["files_left_out"]) == [str(paths[2])]


def test_a_column_that_a_file_lost_is_an_error_that_names_it(lake: Lake) -> None:
    paths = make(lake)
    rows = pq.read_table(paths[1])
    place = rows.column_names.index("n")
    names = [*rows.column_names[:place], "m", *rows.column_names[place + 1 :]]
    replace_file(paths[1], rows.rename_columns(names))
    with pytest.raises(TableError, match=f"{paths[1]}.*has no column 'n', which its schema has"):
        read(lake)


def test_a_file_of_another_format_is_an_error_that_names_it(lake: Lake) -> None:
    lake.create(TableSpec("other", {"n": Int64}, options={"file.format": "orc"}))
    append_arrow(lake, "other", pa.table({"n": [1, 2]}))
    with pytest.raises(TableError, match="only Parquet files can be read; write the table with"):
        SnapshotReader(lake, "other", batch_size=1)


@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_a_file_that_is_bad_when_the_snapshot_is_opened_is_left_out_and_reported(
    lake: Lake, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    paths = make(lake)
    with SnapshotReader(lake, "t", batch_size=8, **OPTIONS) as reader:
        state = reader.state_dict()
    harm(paths[1])
    with caplog.at_level(logging.WARNING):
        batches, reader = read(lake, on_bad_file="skip")
    assert sorted(flat(batches)) == [*range(30), *range(200, 230), *range(300, 330)]
    (reported,) = reader.describe()["files_left_out"].items()
    assert reported[0] == str(paths[1])
    assert "not there" in reported[1] or "it cannot be opened" in reported[1]
    assert str(paths[1]) in caplog.text
    # all ranks leave out the same, and get as many batches as the others
    ranks = [
        read(lake, on_bad_file="skip", batch_size=2, drop_last=True, rank=rank, world_size=4)
        for rank in range(4)
    ]
    together = [sorted(flat(parts)) for parts in zip(*(r[0] for r in ranks), strict=True)]
    assert together == [sorted(batch) for batch in batches[:-1]]
    with (
        SnapshotReader(lake, "t", batch_size=8, on_bad_file="skip", **OPTIONS) as reader,
        pytest.raises(RequestError, match="has other files than when the state was taken"),
    ):
        reader.load_state_dict(state)


def test_rows_of_a_file_that_breaks_later_are_replaced_on_every_rank_alike(lake: Lake) -> None:
    paths = make(lake)
    whole, _ = read(lake)
    scramble(paths[3])
    batches, reader = read(lake, on_bad_file="skip")
    assert list(map(len, batches)) == list(map(len, whole))
    # the block after the last is the first
    wanted = [[n - 300 if n >= 300 else n for n in batch] for batch in whole]
    assert batches == wanted
    assert reader.stats.rows_replaced == 30
    assert list(reader.describe()["blocks_replaced"]) == [3]
    ranks = [
        read(lake, on_bad_file="skip", batch_size=4, rank=rank, world_size=2) for rank in range(2)
    ]
    for number, parts in enumerate(zip(*(r[0] for r in ranks), strict=True)):
        assert sorted(flat(parts)) == sorted(wanted[number])
    for path in paths:
        scramble(path)
    with pytest.raises(TableError, match="no block of it can be read; the first"):
        read(lake, on_bad_file="skip")


def test_of_a_keys_rows_either_all_count_or_none(lake: Lake) -> None:
    lake.create(TableSpec("t", {"part": Int32, "n": Int64, "v": Int64}, ("part", "n"), ("part",)))
    for value in range(3):
        rows = {"part": np.repeat(np.int32([1, 2]), 20), "n": np.tile(np.arange(20), 2)}
        append_arrow(lake, "t", pa.table({**rows, "v": np.full(40, value)}))
    with SnapshotReader(lake, "t", batch_size=40, columns=["part", "v"]) as reader:
        newest = [span for span in reader.layout.blocks[0].spans if "part=2" in span.path][-1]
    Path(newest.path).unlink()
    # without the newest file alone the rows before it would come back
    with SnapshotReader(lake, "t", batch_size=40, on_bad_file="skip") as reader:
        (batch,) = reader
        assert set(batch["part"].tolist()) == {1}
        assert set(batch["v"].tolist()) == {2}
        reasons = sorted(reader.describe()["files_left_out"].values())
    assert reasons[0] == "it is not there"
    assert reasons[1:] == [f"it merges with {newest.path}"] * 2


def test_a_pin_is_a_snapshot_a_tag_or_a_time(lake: Lake) -> None:
    make(lake)
    create_tag(lake, "t", "before", 2)
    times = []
    for number in range(1, 5):
        times.append(lake.table("t").snapshot_manager().get_snapshot_by_id(number).time_millis)

    def rows(**pin: Any) -> tuple[int, int]:
        with SnapshotReader(lake, "t", batch_size=9, columns=["n"], **pin) as reader:
            return reader.snapshot_id, reader.num_rows

    assert rows(snapshot_id=3) == (3, 90)
    assert rows(tag="before") == (2, 60)
    assert rows(as_of_ms=times[2]) == (3, 90)
    assert rows(as_of_ms=times[3] + 1) == rows() == (4, 120)
    Path(lake.path("t"), "snapshot", "snapshot-2").unlink()
    Path(lake.path("t"), "snapshot", "snapshot-1").unlink()
    assert rows(tag="before") == rows(snapshot_id=2) == (2, 60)
    for pin, error, message in (
        ({"tag": "after"}, UnknownNameError, "unknown tag 'after' of table 't'; available: before"),
        ({"snapshot_id": 1}, SnapshotExpiredError, "no snapshot 1; it has 3 to 4"),
        ({"as_of_ms": times[0] - 1}, SnapshotExpiredError, "has expired; the oldest is 3"),
        ({"tag": "before", "snapshot_id": 2}, ConfigurationError, "snapshot_id=2 and tag='before'"),
        ({"on_bad_file": "ignore"}, ConfigurationError, "expected 'error' or 'skip'"),
        ({"canonical_streams": 0}, ConfigurationError, "canonical_streams=0: expected at least 1"),
    ):
        with pytest.raises(error, match=message):
            rows(**pin)
