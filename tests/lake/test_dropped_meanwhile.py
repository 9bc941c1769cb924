"""What reads all tables, while another process drops one of them at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import lost_records
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.reading.scrub import scrub_side_folder, scrub_table
from paimon_features.lake.specs import TRAINING_PREFIX, TableSpec
from paimon_features.lake.storage import Storage
from paimon_features.lake.writing.table_writer import append_arrow
from paimon_features.project.backup.copying import _held
from paimon_features.project.backup.past import _targets
from paimon_features.project.lineage.descriptions import describe_stored
from paimon_features.project.lineage.lineage_graph import _training_sets
from paimon_features.project.status.tables import TableReader
from tests.long_cases import quick_cases

NAME = f"{TRAINING_PREFIX}t"
READS = ("names", "is_folder", "is_file", "size", "read_text", "stamp", "open_parquet")


def create(lake: Lake) -> None:
    lake.create(TableSpec(NAME, {"a": Int64}))
    for value in range(2):
        append_arrow(lake, NAME, pa.table({"a": [value]}))
    create_tag(lake, NAME, "kept", 1)


def drop(lake: Lake) -> None:
    lake.drop(NAME)


def create_again(lake: Lake) -> None:
    drop(lake)
    create(lake)


@contextmanager
def changed_at(storage: Storage, number: int, change: Callable[[], None]) -> Iterator[list[int]]:
    """Change the lake before the read of this number, counted from 1; yields those that follow."""
    left = [number]

    def counting(read: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                change()
            return read(*arguments, **options)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            patch.setattr(storage, name, counting(getattr(storage, name)))
        yield left


def scrub(lake: Lake) -> None:
    for name in lake.list():
        report = scrub_table(lake, name)
        assert report.damages == []
        assert report.dropped or report.files > 0 or not lake.exists(NAME)
    assert scrub_side_folder(lake) == []
    assert list(lost_records(lake)) == []


def sizes(lake: Lake) -> None:
    assert [each.table for each in TableReader(lake).sizes()] in ([], [NAME])


def hold(lake: Lake) -> None:
    with _held(lake):
        pass


def describe(lake: Lake) -> None:
    assert [each["state"] for each in describe_stored(lake)] in ([], ["2 rows"], ["0 rows"])
    assert list(_training_sets(lake)) == []


def set_back(lake: Lake) -> None:
    assert list(_targets(lake, 0)) in ([], [NAME])


@pytest.mark.parametrize(
    ("read", "change"),
    quick_cases(
        itertools.product([scrub, sizes, hold, describe, set_back], [drop, create_again]),
        (scrub, drop),
        (hold, create_again),
    ),
)
def test_a_table_that_is_dropped_at_any_moment_is_no_damage_and_no_error(
    lake: Lake, read: Callable[[Lake], None], change: Callable[[Lake], None]
) -> None:
    for number in itertools.count(1):
        create(lake)
        other = Lake.open(lake.warehouse, lake.database)
        with changed_at(lake.storage, number, lambda: change(other)) as left:  # noqa: B023
            read(lake)
        if left[0] > 0:
            break
        lake.drop(NAME)
    assert number > 3
