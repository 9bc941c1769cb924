"""The ledger of ingested files: no file twice, and consistent after a crash."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RecordLostError
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.ledger import ClusterJob, IngestLedger
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.specs import events_spec, rejected_spec

SALES = EventSource("sales", schema={"at_ms": Int64}, event_time="at_ms")


@pytest.fixture
def ledger(warehouse: Path) -> IngestLedger:
    lake = Lake.open(str(warehouse), "features")
    lake.create(events_spec(SALES.table, SALES.schema))
    lake.create(rejected_spec(SALES.rejected_table))
    return IngestLedger(lake, SALES)


def file(name: str, content: str = "") -> InputFile:
    """An inspected file, with its content instead of a hash."""
    return InputFile(Path("/data") / name, "csv", 1, content or name)


def ingest(ledger: IngestLedger, *files: InputFile, now_ms: int = 1_000) -> str:
    run = ledger.begin(files, {}, now_ms)
    ledger.finish(run, 1, None)
    return run.id


def test_new_files_are_selected_and_known_ones_skipped_with_the_reason(
    ledger: IngestLedger,
) -> None:
    assert ledger.choose([file("a"), file("b")]).new == (file("a"), file("b"))
    run = ingest(ledger, file("a"))
    choice = ledger.choose([file("a"), file("b"), file("copy", "a")])
    assert choice.new == (file("b"),)
    assert choice.skipped == (
        (file("a"), f"ingested before, by run {run}"),
        (file("copy", "a"), f"ingested before as /data/a, by run {run}"),
    )


def test_two_files_of_the_same_content_are_one(ledger: IngestLedger) -> None:
    choice = ledger.choose([file("a", "x"), file("b", "x")])
    assert choice.new == (file("a", "x"),)
    assert choice.skipped == ((file("b", "x"), "the same content as /data/a"),)


def test_a_changed_file_is_rejected_with_both_remedies(
    ledger: IngestLedger,
) -> None:
    run = ingest(ledger, file("a", "old"))
    with pytest.raises(ConfigurationError, match=f"/data/a has changed since run {run}.*--again"):
        ledger.choose([file("a", "old and new")])


def test_again_selects_every_named_file(ledger: IngestLedger) -> None:
    ingest(ledger, file("a", "old"), file("b"))
    wanted = [file("a", "new"), file("b"), file("c", "b")]
    assert ledger.choose(wanted, again=True).new == tuple(wanted)


def test_the_ledger_is_persistent(ledger: IngestLedger) -> None:
    run = ledger.begin([file("a")], {"at_ms": "Time"}, 5)
    later = IngestLedger(ledger.lake, SALES)
    assert later.open_run() == run
    assert later.runs() == []
    later.finish(run, 3, 4)
    (done,) = ledger.runs()
    assert (done.id, done.mapping, done.events_snapshot, done.rejected_snapshot) == (
        run.id,
        {"at_ms": "Time"},
        3,
        4,
    )
    assert ledger.open_run() is None


def test_files_of_a_dropped_table_are_new_to_the_one_created_again(ledger: IngestLedger) -> None:
    ingest(ledger, file("a"))
    job = ClusterJob("http://localhost:8081", "0" * 32)
    ledger.send(job)
    ledger.begin([file("b")], {}, 2_000)
    ledger.lake.drop(SALES.table)
    ledger.lake.create(events_spec(SALES.table, SALES.schema))
    assert ledger.open_run() is None
    assert ledger.choose([file("a"), file("b")]).new == (file("a"), file("b"))
    assert ledger.cluster_job() == job
    again = ingest(ledger, file("a"))
    assert [run.id for run in ledger.runs()] == [again]


def test_a_forgotten_run_leaves_its_files_new(ledger: IngestLedger) -> None:
    ledger.begin([file("a")], {}, 5)
    ledger.forget()
    assert ledger.open_run() is None
    assert ledger.choose([file("a")]).new == (file("a"),)


def test_run_times_are_unique_even_if_the_clock_goes_back(ledger: IngestLedger) -> None:
    # the time identifies the rows of a run, so it must be unique
    ingest(ledger, file("a"), now_ms=1_000)
    assert ledger.begin([file("b")], {}, 999).time_ms == 1_001


def test_a_lost_ledger_is_refused_until_the_ingested_files_are_named(ledger: IngestLedger) -> None:
    lake = ledger.lake
    ingest(ledger, file("a"), file("b"))
    shutil.rmtree(lake.side_folder)
    for refused in (ledger.check, ledger.runs, ledger.open_run, lambda: ledger.choose([file("a")])):
        with pytest.raises(RecordLostError, match=r"ingests/features.sales.json.*--mark-ingested"):
            refused()
    with pytest.raises(RecordLostError):
        ledger.begin([file("a")], {}, 1)
    assert ledger.adopt([file("a")], 7).new == (file("a"),)
    ledger.check()
    assert ledger.choose([file("a"), file("b")]).new == (file("b"),)
    assert ledger.adopt([file("a"), file("b")], 8).new == (file("b"),)
    assert ledger.choose([file("a"), file("b")]).new == ()


def test_a_ledger_that_is_older_than_the_table_is_refused(ledger: IngestLedger) -> None:
    #  ledger   run 1 ---- copy ------------------------ the copy again: run 2 is unknown
    #  events          1 --------- 2
    def commit(run: str) -> None:
        schema = ledger.lake.schema(SALES.table)
        rows = pa.Table.from_pylist([dict.fromkeys(schema.names, 1)], schema)
        user = f"ingest-{run}_{uuid.UUID(int=1)}"  # as of Flink's sink
        append_arrow(ledger.lake, SALES.table, rows, commit_user=user, commit_identifier=1)

    commit(ingest(ledger, file("a")))
    older = ledger.record.path.read_text()
    second = ingest(ledger, file("b"))
    commit(second)
    ledger.check()
    ledger.record.path.write_text(older)
    with pytest.raises(RecordLostError, match="is older than the table.*--mark-ingested"):
        ledger.check()
    ledger.record.accept_loss()  # as of a warehouse whose marks have no number: by the snapshots
    with pytest.raises(RecordLostError, match=f"not contain the run {second}.*--mark-ingested"):
        ledger.check()
    ledger.adopt([file("b")], 9)
    ledger.check()
    # a warehouse of before the marks: the snapshots alone show the loss
    ledger.record.path.unlink()
    ledger.record.accept_loss()
    with pytest.raises(RecordLostError, match="is missing or older"):
        ledger.check()


def test_the_ledger_of_a_dropped_table_is_not_missed(ledger: IngestLedger) -> None:
    ingest(ledger, file("a"))
    ledger.lake.drop(SALES.table)
    ledger.lake.create(events_spec(SALES.table, SALES.schema))
    ledger.record.path.unlink()
    ledger.check()
    assert ledger.choose([file("a")]).new == (file("a"),)


@pytest.mark.parametrize(("events", "rejected"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_the_commits_of_a_run_are_found_in_the_tables(
    ledger: IngestLedger, events: int, rejected: int
) -> None:
    other = ledger.begin([file("z")], {}, 1)
    ledger.finish(other, 1, 1)
    run = ledger.begin([file("a")], {}, 2)

    def commit(time_ms: int, run_id: str, of_events: int, of_rejected: int) -> None:
        row = {"at_ms": 7, "event_day": 0, "ingest_time_ms": time_ms}
        schema = pa.schema([("at_ms", pa.int64()), ("event_day", pa.int32())])
        schema = schema.append(pa.field("ingest_time_ms", pa.int64()))
        if of_events:
            append_arrow(ledger.lake, SALES.table, pa.Table.from_pylist([row], schema))
        texts = dict.fromkeys(("reason", "detail", "raw", "origin"), "x")
        bad = {**texts, "ingest_id": run_id, "ingest_time_ms": time_ms}
        if of_rejected:
            append_arrow(ledger.lake, SALES.rejected_table, pa.Table.from_pylist([bad]))

    commit(1, other.id, 1, 1)
    commit(run.time_ms, run.id, events, rejected)
    assert ledger.committed(run) == (bool(events), bool(rejected))


def test_the_ledger_records_the_job_on_a_cluster(ledger: IngestLedger) -> None:
    assert ledger.cluster_job() is None
    ingest(ledger, file("a"))
    job = ClusterJob("http://127.0.0.1:8081", "f" * 32, "/state/checkpoints/ingest-sales-t")
    ledger.send(job)
    ingest(ledger, file("b"))
    assert ledger.cluster_job() == job
    assert str(job) == f"job {'f' * 32} at http://127.0.0.1:8081"
    assert len(ledger.runs()) == 2
