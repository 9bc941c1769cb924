"""Streams that resume from checkpoints, without Flink."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.errors import JobError
from paimon_features.flink.ingest.topic import _TABLES, check_same_tables, creation_times
from paimon_features.schema import Int64
from paimon_features.tables import Lake, TableSpec
from paimon_features.tables.json_files import write_json


def test_a_stream_does_not_resume_into_a_table_that_was_created_again(
    warehouse: Path, tmp_path: Path
) -> None:
    lake = Lake.open(warehouse, "features")
    tables = [(lake, "events_sales"), (lake, "orders")]
    for _, name in tables:
        lake.create(TableSpec(name, {"a": Int64}))
    check_same_tables(tables, tmp_path)  # of an earlier release: nothing is known
    write_json(tmp_path / _TABLES, creation_times(tables))
    check_same_tables(tables, tmp_path)
    lake.drop("orders")
    lake.create(TableSpec("orders", {"a": Int64}))
    with pytest.raises(JobError, match="features.db/orders was dropped and created again since"):
        check_same_tables(tables, tmp_path)
