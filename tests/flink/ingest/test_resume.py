"""Guards of streams with their evidence removed: expired, replaced by name, or an old copy.

Each test takes away what a guard might consult (snapshots, checkpoints, the table, the topic) and
expects a refusal, or the one start at which no row is duplicated and none is left out.
"""

from __future__ import annotations

import os
import shutil
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import JobError, RecordLostError
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import EventSource
from paimon_features.flink.checkpoints import METADATA, Checkpoint
from paimon_features.ingest.flink.kafka_check import _check_same_topic
from paimon_features.ingest.flink.kafka_sql import KafkaTopic
from paimon_features.ingest.flink.resume import (
    TABLES_FILE,
    begin,
    check_same_tables,
    creation_times,
    resume_point,
)
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, TableSpec, append_arrow
from paimon_features.lake.metadata.snapshots import snapshot_ids
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.specs import events_spec, rejected_spec
from paimon_features.lake.storage.json_files import write_json

CLICKS = EventSource("clicks", schema={"at_ms": Int64}, event_time="at_ms")
RUN = IngestRun("kafka-clicks-t", None)
JOBS = ("a" * 32, "b" * 32)


@dataclass
class Stream:
    """A stream whose jobs commit and write checkpoints, without Flink."""

    lake: Lake
    folder: Path
    job: str = JOBS[0]

    def __post_init__(self) -> None:
        self.lake.create(events_spec(CLICKS.table, CLICKS.schema))
        self.lake.create(rejected_spec(CLICKS.rejected_table))
        self.user = f"{RUN.commit_user_prefix}_{uuid.uuid4()}"

    @property
    def ledger(self) -> IngestLedger:
        return IngestLedger(self.lake, CLICKS)

    @property
    def tables(self) -> list[tuple[Lake, str]]:
        return [(self.lake, CLICKS.table), (self.lake, CLICKS.rejected_table)]

    def start(self) -> Checkpoint | None:
        """What ``follow`` does before a job."""
        self.ledger.settle_streams()
        return resume_point(self.ledger, RUN, self.folder, self.tables)

    def begin(self, start: Checkpoint | None = None, restart: bool = False) -> None:
        begin(self.ledger, RUN, self.tables, self.job, start, restart=restart)

    def commit(self, number: int, user: str | None = None) -> None:
        rows = pa.table({"at_ms": [number], "event_day": [0], "ingest_time_ms": [number]})
        append_arrow(
            self.lake, CLICKS.table, rows, commit_user=user or self.user, commit_identifier=number
        )

    def checkpoint(self, number: int) -> Path:
        path = self.folder / self.job / f"chk-{number}"
        path.mkdir(parents=True)
        (path / METADATA).write_bytes(struct.pack(">iiq", 0x4960672D, 5, number))
        return path

    def run(self, *numbers: int, clean: bool = True) -> None:
        """A job that commits some checkpoints; a clean end records them."""
        self.begin(self.start())
        for number in numbers:
            self.checkpoint(number)
            self.commit(number)
        if clean:
            self.ledger.settle_streams()

    def expire(self, keep: int = 1) -> None:
        """Let another writer commit, and all snapshots but the newest expire."""
        for number in range(2):
            self.commit(number, "other")
        for old in snapshot_ids(self.lake, CLICKS.table)[:-keep]:
            os.remove(f"{self.lake.path(CLICKS.table)}/snapshot/snapshot-{old}")

    def lose_checkpoints(self) -> None:
        shutil.rmtree(self.folder)


@pytest.fixture
def stream(warehouse: Path, tmp_path: Path) -> Stream:
    return Stream(Lake.open(str(warehouse), "features"), tmp_path / "checkpoints")


def expired(stream: Stream) -> None:
    stream.expire()


def nothing_lost(stream: Stream) -> None:
    pass


@pytest.mark.parametrize("snapshots", [nothing_lost, expired])
def test_a_stream_without_its_checkpoints_does_not_begin_again(
    stream: Stream, snapshots: Callable[[Stream], None]
) -> None:
    stream.run(1, 2)
    snapshots(stream)
    stream.lose_checkpoints()
    with pytest.raises(JobError, match="contains checkpoint 2 .*is none.*--restart"):
        stream.start()


@pytest.mark.parametrize("snapshots", [nothing_lost, expired])
def test_a_stream_does_not_resume_from_an_older_copy_of_its_checkpoints(
    stream: Stream, snapshots: Callable[[Stream], None], tmp_path: Path
) -> None:
    stream.run(1)
    copy = shutil.copytree(stream.folder, tmp_path / "copy")
    stream.run(2, 3)
    stream.lose_checkpoints()
    snapshots(stream)
    shutil.copytree(copy, stream.folder)  # its files look newer than all others
    with pytest.raises(JobError, match="contains checkpoint 3 .*the newest is 1"):
        stream.start()


def test_checkpoints_of_another_history_do_not_count(stream: Stream, tmp_path: Path) -> None:
    stream.run(1, 2)
    copy = shutil.copytree(stream.folder, tmp_path / "copy")
    # --restart: numbers start again, with a record of its own
    stream.job = JOBS[1]
    stream.begin(restart=True)
    stream.lose_checkpoints()
    stream.checkpoint(1)
    shutil.copytree(copy, stream.folder, dirs_exist_ok=True)
    found = stream.start()
    assert found is not None
    assert (found.job_id, found.id) == (JOBS[1], 1)


def test_a_killed_stream_whose_commits_expired_before_anybody_saw_them_is_refused(
    stream: Stream,
) -> None:
    stream.run(1, 2, clean=False)
    stream.expire()
    with pytest.raises(JobError, match="have expired: rows could be duplicated, or left out"):
        stream.start()
    with pytest.raises(JobError, match="have expired"):  # also later
        stream.start()


def test_a_killed_stream_is_recorded_by_whoever_owns_its_tables_next(stream: Stream) -> None:
    stream.run(1, 2, clean=False)
    stream.ledger.settle_streams()  # as an ingestion of files, or maintenance, does
    stream.expire()
    found = stream.start()
    assert found is not None
    assert found.id == 2


def test_a_stream_that_has_committed_nothing_begins_again(stream: Stream) -> None:
    stream.run(clean=False)
    assert stream.start() is None
    stream.run()
    stream.expire()
    assert stream.start() is None


@pytest.mark.parametrize("table", [CLICKS.table, CLICKS.rejected_table])
def test_a_stream_does_not_resume_into_a_table_of_the_same_name(stream: Stream, table: str) -> None:
    stream.run(1, 2)
    spec = events_spec if table == CLICKS.table else None
    stream.lake.drop(table)
    stream.lake.create(spec(table, CLICKS.schema) if spec else rejected_spec(table))
    with pytest.raises(JobError, match=r"was dropped and created again|nothing records for which"):
        stream.start()


def test_a_stream_does_not_resume_into_a_table_that_was_rolled_back(stream: Stream) -> None:
    from paimon_features.lake.metadata.rollback import roll_back_table

    stream.run(1, 2, 3)
    with commit_lock(stream.lake, CLICKS.table, "rolling back"):
        roll_back_table(stream.lake, CLICKS.table, 1)
    with pytest.raises(JobError, match="was rolled back since this stream wrote to it"):
        stream.start()


def test_a_lost_ledger_is_an_error_and_its_accepted_loss_no_first_run(stream: Stream) -> None:
    stream.run(1, 2)
    stream.expire()
    stream.lose_checkpoints()
    os.remove(str(stream.ledger.record.path))
    with pytest.raises(RecordLostError):
        stream.start()
    stream.ledger.adopt([], 1)
    with pytest.raises(JobError, match="was lost, and .* has no checkpoint"):
        stream.start()


def test_checkpoints_of_an_earlier_release_are_adopted_if_they_name_their_tables(
    stream: Stream,
) -> None:
    stream.checkpoint(2)
    stream.commit(2)
    with pytest.raises(JobError, match="nothing records for which tables"):
        stream.start()
    write_json(stream.folder / TABLES_FILE, creation_times(stream.tables))
    found = stream.start()
    assert found is not None
    assert found.id == 2
    # a job that is killed before its first checkpoint leaves the one of before
    stream.job = JOBS[1]
    stream.begin(found)
    assert stream.start() == found
    stream.lose_checkpoints()
    with pytest.raises(JobError, match="contains checkpoint 2 .*is none"):
        stream.start()


def test_a_stream_of_an_earlier_release_is_not_resumed_from_an_older_checkpoint(
    stream: Stream,
) -> None:
    stream.checkpoint(2)
    write_json(stream.folder / TABLES_FILE, creation_times(stream.tables))
    stream.commit(3)
    with pytest.raises(JobError, match="contains checkpoint 3 .*the newest is 2"):
        stream.start()


def test_tables_that_were_created_again_are_named(warehouse: Path, tmp_path: Path) -> None:
    lake = Lake.open(warehouse, "features")
    tables = [(lake, "events_sales"), (lake, "orders")]
    for _, name in tables:
        lake.create(TableSpec(name, {"a": Int64}))
    known = creation_times(tables)
    check_same_tables(tables, {}, tmp_path)
    check_same_tables(tables, known, tmp_path)
    lake.drop("orders")
    lake.create(TableSpec("orders", {"a": Int64}))
    with pytest.raises(JobError, match="features.db/orders was dropped and created again since"):
        check_same_tables(tables, known, tmp_path)


def test_a_topic_of_the_same_name_is_another_topic() -> None:
    topic = KafkaTopic("broker:9092", "clicks", "g", ())
    _check_same_topic(topic, "one", "one")
    for known, found in ((None, "two"), ("one", None)):  # brokers without ids
        _check_same_topic(topic, known, found)
    with pytest.raises(JobError, match=r"'clicks' was deleted and created again.*id is two"):
        _check_same_topic(topic, "one", "two")
