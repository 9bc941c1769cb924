"""The selection of partitions to compact."""

from __future__ import annotations

from paimon_features.lake.reading.deltas import DataFile
from paimon_features.project.maintenance.maintenance_sql import compact_sql, expire_sql, to_compact


def file(day: int | None, bucket: int, level: int = 0) -> DataFile:
    partition = {} if day is None else {"tile_day": day}
    return DataFile(bucket, partition, "f.parquet", level, "ADD", 1, 1, 0)


def test_only_buckets_of_several_files_are_compacted() -> None:
    files = [file(1, 0), file(1, 1), file(2, 0), file(2, 0)]
    assert to_compact(files, keyed=False) == [(("tile_day", 2),)]


def test_a_single_unmerged_file_is_compacted_in_primary_key_tables() -> None:
    files = [file(1, 0, level=5), file(2, 0, level=0)]
    assert to_compact(files, keyed=True) == [(("tile_day", 2),)]
    assert to_compact(files, keyed=False) == []


def test_a_table_without_partitions_is_compacted_completely() -> None:
    assert to_compact([file(None, 0), file(None, 0)], keyed=False) == [()]
    assert compact_sql("a.b", False, [()]) == (
        "CALL sys.compact(`table` => 'a.b', options => 'compaction.min.file-num=2')"
    )


def test_expiry_follows_the_options_of_the_table_by_default() -> None:
    assert "retain" not in expire_sql("a.b", None)
