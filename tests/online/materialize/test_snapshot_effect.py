"""The effect of each kind of snapshot on the online store."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from paimon_features.core.windows import DAY_MS
from paimon_features.lake.metadata.snapshots import Snapshot
from paimon_features.lake.reading.deltas import DataFile, Delta
from paimon_features.online.materialize.materialize_progress import RebuildNeeded
from paimon_features.online.materialize.snapshot_effect import (
    added_files,
    identity,
    oldest_needed,
    within_windows,
)
from tests.clicks import START_MS, clicks_view

VIEW = clicks_view(lifetime=False).compiled
HIGH_MS = {0: START_MS, 1: START_MS + 100 * DAY_MS}


def delta(kind: str, *files: DataFile) -> Delta:
    return Delta(Snapshot(7, kind, "user", 3, 1_000, 0, 0, 0), files)


def file(
    bucket: int = 0,
    level: int = 0,
    kind: Literal["ADD", "DELETE"] = "ADD",
    day: int = 0,
    days: int = 1,
) -> DataFile:
    partition = {"tile_day": day}
    return DataFile(bucket, partition, "path", level, kind, 1, 1, 0, partition_days=days)


def test_appends_are_applied_by_bucket_without_foreign_buckets() -> None:
    files = [file(0), file(1), file(2), file(0, day=5)]
    assert added_files(VIEW, delta("APPEND", *files), HIGH_MS) == {
        0: [files[0], files[3]],
        1: [files[1]],
    }


@pytest.mark.parametrize("kind", ["COMPACT", "ANALYZE"])
def test_compactions_and_statistics_change_nothing(kind: str) -> None:
    files = [file(0, kind="DELETE"), file(0, level=5)]
    assert added_files(VIEW, delta(kind, *files), HIGH_MS) == {}


@pytest.mark.parametrize("odd", [file(1, level=1), file(1, kind="DELETE")])
def test_an_append_with_deletions_or_compacted_files_requires_a_rebuild(odd: DataFile) -> None:
    with pytest.raises(RebuildNeeded, match="snapshot 7 is an append"):
        added_files(VIEW, delta("APPEND", file(), odd), HIGH_MS)
    assert added_files(VIEW, delta("APPEND", odd), {0: 0}) == {}


def test_the_expiry_of_days_outside_every_window_changes_nothing() -> None:
    #   day   |-----| ... oldest needed |-----------| high
    oldest = oldest_needed(VIEW, START_MS)
    assert oldest % DAY_MS == 0
    last = oldest // DAY_MS - 1
    gone = file(0, kind="DELETE", day=last, level=5)
    assert added_files(VIEW, delta("OVERWRITE", gone), HIGH_MS) == {}
    needed = file(0, kind="DELETE", day=last + 1)
    with pytest.raises(RebuildNeeded, match=f"overwrites day {last + 1}"):
        added_files(VIEW, delta("OVERWRITE", gone, needed), HIGH_MS)
    # by the high mark of the bucket
    later = file(1, kind="DELETE", day=last + 100)
    assert added_files(VIEW, delta("OVERWRITE", gone, later), HIGH_MS) == {}
    with pytest.raises(RebuildNeeded):
        added_files(VIEW, delta("OVERWRITE", file(0, day=last)), HIGH_MS)
    with pytest.raises(RebuildNeeded):
        added_files(clicks_view().compiled, delta("OVERWRITE", gone), HIGH_MS)


def test_an_unknown_kind_requires_a_rebuild() -> None:
    with pytest.raises(RebuildNeeded, match="unknown kind 'REWRITE'"):
        added_files(VIEW, delta("REWRITE"), HIGH_MS)


@pytest.mark.parametrize(
    "change", [{"commit_user": "other"}, {"commit_identifier": 4}, {"time_ms": 1_001}]
)
def test_commits_with_equal_numbers_have_different_identities(change: dict[str, Any]) -> None:
    import dataclasses

    one = delta("APPEND").snapshot
    assert identity(one) == identity(delta("COMPACT").snapshot)
    assert identity(dataclasses.replace(one, **change)) != identity(one)


def test_a_partition_of_several_days_is_needed_until_its_last_day_is_not() -> None:
    oldest_day = oldest_needed(VIEW, START_MS) // DAY_MS
    gone = file(0, kind="DELETE", day=oldest_day - 8, days=8, level=5)
    assert added_files(VIEW, delta("OVERWRITE", gone), HIGH_MS) == {}
    needed = file(0, kind="DELETE", day=oldest_day - 7, days=8, level=5)
    with pytest.raises(RebuildNeeded, match=f"overwrites day {oldest_day - 7}"):
        added_files(VIEW, delta("OVERWRITE", needed), HIGH_MS)


def test_no_file_of_a_long_partition_is_left_out_by_its_first_day() -> None:
    newest = START_MS // DAY_MS
    files = [file(day=newest - 100), file(day=newest - 100, days=101), file(day=newest, days=64)]
    assert within_windows(VIEW, files) == files[1:]
