"""What a verified file leaves in memory."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.lake.storage import VerifiedParquetFile


def parsed_footers() -> int:
    return sum(isinstance(one, pq.FileMetaData) for one in gc.get_objects())


def test_what_arrow_has_parsed_of_a_file_is_freed_without_the_cycle_collector(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [1, 2], "word": ["a", "b"]}), path)
    gc.collect()
    before = parsed_footers()
    gc.disable()
    try:
        with VerifiedParquetFile.local(str(path), path.stat().st_size) as file:
            assert file.read().num_rows == 2
        del file
        assert parsed_footers() == before
    finally:
        gc.enable()
