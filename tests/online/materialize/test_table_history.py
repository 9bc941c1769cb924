"""Rollbacks, expiry and overwrites of a tile table: exact, rebuilt, or rejected."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.windows import DAY_MS
from paimon_features.lake.metadata.consumers import consumers, delete_consumer
from paimon_features.lake.metadata.rollback import rollback
from paimon_features.lake.metadata.snapshots import latest_snapshot, snapshots
from paimon_features.lake.reading.deltas import live_files, read_delta
from paimon_features.lake.side_folder import generations
from paimon_features.online.store import MemoryStore, OnlineStore
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import tile_table
from tests.clicks import (
    START_MS,
    ClickStream,
    clicks_view,
    random_clicks,
    wrong_answers,
)
from tests.data_files import replace_file
from tests.stored import Stored
from tests.tile_lake import TileLake

VIEW = clicks_view()
CONSUMER = "materialize-shop-clicks-0-of-1"


def expire_day(lake: TileLake, day_ms: int) -> None:
    """Delete a day's partition; the commit is an OVERWRITE, like Paimon's expiry."""
    commit = lake.lake.table(lake.record.table).new_batch_write_builder().new_commit()
    commit.truncate_partitions([{"tile_day": day_ms // DAY_MS}])
    newest = latest_snapshot(lake.lake, lake.record.table)
    assert newest is not None
    assert newest.kind == "OVERWRITE"


def commit_in_one_snapshot(lake: TileLake, groups: list[list[Event]]) -> None:
    """One commit with a level-0 file per group, so that keys occur in several files."""
    table = lake.lake.table(lake.record.table)
    writers = [table.new_stream_write_builder()._with_commit_user("u").new_write() for _ in groups]
    messages = []
    for writer, events in zip(writers, groups, strict=True):
        rows = tile_table(lake.view, events).cast(lake.lake.schema(lake.record.table))
        writer.write_arrow(rows)
        messages += writer.prepare_commit(1)
    table.new_stream_write_builder()._with_commit_user("u").new_commit().commit(messages, 1)
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("built", [False, True])
def test_one_key_in_several_files_of_a_snapshot_counts_once_per_row(
    lake: TileLake, store: OnlineStore, stored: Stored, built: bool
) -> None:
    materializer = lake.materializer(store)
    if not built:
        materializer.run_once()
    rng = random.Random(4)
    groups = [random_clicks(rng, START_MS + 50 * DAY_MS, 80) for _ in range(3)]
    commit_in_one_snapshot(lake, groups)
    delta = read_delta(lake.lake, lake.record.table, 1)
    assert max(len(files) for files in delta.by_bucket().values()) >= 3
    result = materializer.run_once()
    assert result.applied_snapshot == 1
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, store, [e for events in groups for e in events]) == []


def test_a_rolled_back_table_is_rebuilt(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    first, kept = stored.state().epoch, list(stream.events)
    stream.commit()
    materializer.run_once()
    generations.save(lake.lake, lake.record)
    lake.record = rollback(lake.lake, lake.record, 1, release=(CONSUMER,))
    stream.events = kept
    assert materializer.run_once().caught_up
    assert stored.state().epoch != first
    assert wrong_answers(VIEW, store, stream.events) == []
    stream.commit()
    assert materializer.run_once().applied_snapshot == 2
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.parametrize("commits_after", [0, 1, 2])
def test_an_unannounced_rollback_is_detected(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored, commits_after: int
) -> None:
    # snapshot numbers are reused; the applied one is a different one now, or missing
    materializer = lake.materializer(store)
    stream.commit()
    kept = list(stream.events)
    stream.commit()
    materializer.run_once()
    before = stored.state().epoch
    lake.lake.table(lake.record.table).rollback_to(1)
    stream.events = kept
    for _ in range(commits_after):
        stream.commit()
    assert materializer.run_once().caught_up
    assert stored.state().epoch != before
    assert wrong_answers(VIEW, store, stream.events) == []


def test_an_expired_snapshot_causes_a_rebuild(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    before = stored.state().epoch
    for _ in range(4):
        stream.commit()
    folder = Path(lake.lake.path(lake.record.table)) / "snapshot"
    for expired in (1, 2, 3):
        (folder / f"snapshot-{expired}").unlink()
    (folder / "EARLIEST").write_text("4")
    assert materializer.run_once().applied_snapshot == 5
    assert stored.state().epoch != before
    assert wrong_answers(VIEW, store, stream.events) == []


def test_a_data_file_that_expires_before_it_is_read_causes_a_rebuild(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    #  planned from the delta of 2, which compaction and expiry remove before it is read:
    #  the same rows are in a newer file
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    before = stored.state().epoch
    stream.commit()
    files = read_delta(lake.lake, lake.record.table, 2).files
    moved = [(Path(file.path), Path(file.path + ".away")) for file in files]
    for there, away in moved:
        there.rename(away)
    with pytest.raises(TableError, match="overtaken 5 times"):
        materializer.run_once()
    assert stored.state().epoch == before
    for there, away in moved:
        away.rename(there)
    assert materializer.run_once().caught_up
    assert stored.state().epoch != before
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.flink
@pytest.mark.redis
def test_compaction_and_expiry_by_flink_change_nothing(
    tmp_path: Path, redis_store: OnlineStore, flink_sql: Callable[..., None]
) -> None:
    #  snapshots   APPEND ...   | COMPACT, OVERWRITE by Flink |   APPEND
    #  applied           ^ here                                     ^ then here, in the same epoch
    view = clicks_view(lifetime=False)
    lake = TileLake(tmp_path / "compacted", view)
    stream, stored = ClickStream(lake, 6), Stored(redis_store, view.name)
    ancient = [{"user": 1, "t": START_MS - 3000 * DAY_MS, "n": 5, "word": "gone"}]
    lake.commit(ancient)
    for _ in range(3):
        stream.commit(60, minutes=300)
    materializer = lake.materializer(redis_store)
    materializer.run_once()
    before = stored.state().epoch
    stream.commit(60)
    name, day = f"features.{lake.record.table}", ancient[0]["t"] // DAY_MS
    flink_sql(
        lake.lake.warehouse,
        [
            f"CALL sys.compact(`table` => '{name}', compact_strategy => 'full')",
            f"CALL sys.drop_partition('{name}', 'tile_day={day}')",
        ],
        config={"table.dml-sync": "true"},
    )
    stream.commit(60)
    kinds = [s.kind for s in snapshots(lake.lake, lake.record.table, 5)]
    assert kinds == ["APPEND", "COMPACT", "OVERWRITE", "APPEND"]
    result = materializer.run_once()
    assert result.caught_up
    assert stored.state().epoch == before
    assert wrong_answers(view, redis_store, stream.events) == []
    materializer.rebuild()  # from files of several levels
    assert wrong_answers(view, redis_store, stream.events) == []


def test_a_consumer_protects_the_applied_snapshot_and_is_recreated_if_deleted(
    lake: TileLake, stream: ClickStream
) -> None:
    materializer = lake.materializer(MemoryStore())
    for number in (1, 2, 3):
        stream.commit()
        materializer.run_once()
        assert consumers(lake.lake, lake.record.table) == {CONSUMER: number}
    delete_consumer(lake.lake, lake.record.table, CONSUMER)
    stream.commit()
    materializer.run_once()
    assert consumers(lake.lake, lake.record.table) == {CONSUMER: 4}


@pytest.mark.parametrize(("days_ago", "rebuilt"), [(70, False), (20, True)])
def test_an_expired_partition_is_skipped_only_beyond_every_window(
    tmp_path: Path, store: OnlineStore, stored: Stored, days_ago: int, rebuilt: bool
) -> None:
    view = clicks_view(lifetime=False)
    lake = TileLake(tmp_path / "windows", view)
    old = {"user": 1, "t": START_MS - days_ago * DAY_MS, "n": 5, "word": "old"}
    new = [{"user": u, "t": START_MS, "n": 7, "word": None} for u in range(20)]
    lake.commit([old])
    lake.commit(new)
    materializer = lake.materializer(store)
    materializer.run_once()
    before = stored.state().epoch
    expire_day(lake, old["t"])
    assert materializer.run_once().applied_snapshot == 3
    assert (stored.state().epoch != before) == rebuilt
    assert wrong_answers(view, store, new if rebuilt else [old, *new], START_MS + 1) == []


def test_an_expired_partition_is_never_skipped_under_a_lifetime(
    lake: TileLake, store: OnlineStore
) -> None:
    lake.commit([{"user": 1, "t": START_MS - 500 * DAY_MS, "n": 5, "word": "old"}])
    new = [{"user": 1, "t": START_MS, "n": 7, "word": None}]
    lake.commit(new)
    materializer = lake.materializer(store)
    materializer.run_once()
    expire_day(lake, START_MS - 500 * DAY_MS)
    materializer.run_once()
    assert wrong_answers(VIEW, store, new, START_MS + 1) == []


def test_a_delete_row_in_a_delta_is_an_error(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    before = stored.records()
    stream.commit()
    for file in live_files(lake.lake, lake.record.table, 2):
        rows = pq.read_table(file.path)
        place = rows.schema.get_field_index("_VALUE_KIND")
        deleted = pa.array([3] * rows.num_rows, rows.schema.field(place).type)
        replace_file(file.path, rows.set_column(place, rows.schema.field(place), deleted))
    with pytest.raises(TableError, match="DELETE"):
        materializer.run_once()
    assert stored.records() == before


def test_a_new_generation_is_built_and_switched_to(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    stream.commit()
    lake.materializer(store).run_once()
    before = stored.state()
    lake.new_generation(buckets=5)
    lake.commit(stream.events)
    lake.materializer(store).run_once()
    after = stored.state()
    assert after.content is not None
    assert (after.content.generation, after.content.buckets) == (2, 5)
    assert after.epoch != before.epoch
    assert stored.epochs() == {after.epoch}
    assert wrong_answers(VIEW, store, stream.events) == []
