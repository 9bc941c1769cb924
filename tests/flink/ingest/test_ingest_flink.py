"""The ingest job on Flink: every row is accepted or rejected with a reason, exactly once."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paimon_features as pf
from paimon_features.core.errors import (
    ConfigurationError,
    JobError,
    LeaseLostError,
    OwnershipError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS
from paimon_features.definitions import FeedbackSource
from paimon_features.flink.environment import open_environment, register_lake
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.ingest.flink import job as module
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.flink.ingest_sql import file_statements, kafka_statements
from paimon_features.ingest.flink.job import OPTIONS, IngestJob, explain, prepare
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.input_columns import group_files
from paimon_features.ingest.input_files import inspect_file
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.ingest.release import release_due
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, latest_snapshot, read_arrow
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import acquire
from paimon_features.project import Project
from tests.flink.ingest.click_source import CLICKS, clicks, new_lake
from tests.flink.ingest.ingest_inputs import NAMES, NOW_MS, SOURCE, TOO_LATE_MS, Outcome, write_all
from tests.flink.ingest.reference_ingest import Bad
from tests.test_times import columns_of

pytestmark = pytest.mark.flink

ROOT = Path(__file__).parents[3]
REASONS = {
    "unreadable", "too_few_columns", "too_many_columns", "wrong_type", "not_finite",
    "missing_time", "time_out_of_range", "time_in_future",
}  # fmt: skip


def ids(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, CLICKS.table, columns=["id"])["id"].to_pylist())


# -- one run over every input form


@dataclass
class Ingested:
    lake: Lake
    state_dir: Path
    files: dict[Path, list[Outcome]]
    result: IngestResult

    def outcomes(self) -> Iterator[tuple[Path, str, Any]]:
        for path, outcomes in self.files.items():
            for raw, outcome in outcomes:
                yield path, raw, outcome

    def rejects(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_arrow(self.lake, SOURCE.rejected_table).to_pylist()
        return rows


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    folder = tmp_path_factory.mktemp("ingest")
    inputs = folder / "in puts"
    inputs.mkdir()
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when a test fails
    files = dict(write_all(inputs, seed))
    lake = new_lake(folder, SOURCE)
    result = ingest_files(lake, SOURCE, [inputs], state_dir=folder / "state")
    return Ingested(lake, folder / "state", files, result)


def test_every_valid_row_is_an_event_with_the_values_of_the_reference(
    ingested: Ingested,
) -> None:
    expected = Counter(
        tuple(outcome[name] for name in NAMES)
        for _, _, outcome in ingested.outcomes()
        if not isinstance(outcome, Bad)
    )
    rows = read_arrow(ingested.lake, SOURCE.table).to_pylist()
    found = Counter(tuple(row[name] for name in NAMES) for row in rows)
    assert found - expected == Counter()
    assert expected - found == Counter()
    assert {row["event_day"] - row["at_ms"] // DAY_MS for row in rows} == {0}
    assert len({row["ingest_time_ms"] for row in rows}) == 1


def test_every_invalid_row_is_rejected_with_reason_text_and_file(ingested: Ingested) -> None:
    expected = Counter(
        (str(path), outcome.reason, "" if outcome.values is not None else raw)
        for path, raw, outcome in ingested.outcomes()
        if isinstance(outcome, Bad)
    )
    found: Counter[tuple[str, str, str]] = Counter()
    for row in ingested.rejects():
        if row["reason"] == "time_in_future":
            assert set(json.loads(row["raw"])) == set(NAMES)
            row["raw"] = ""
        elif row["origin"].endswith(".parquet"):
            # a row without a text is stored as JSON of its columns
            assert list(json.loads(row["raw"])) == sorted(NAMES)
            row["raw"] = ""
        found[row["origin"], row["reason"], row["raw"]] += 1
        assert row["detail"]
        assert row["ingest_id"] == ingested.result.run_id
    assert found - expected == Counter()
    assert expected - found == Counter()


def test_held_future_events_are_released_exactly_once(ingested: Ingested, tmp_path: Path) -> None:
    shutil.copytree(ingested.lake.warehouse, tmp_path / "lake")
    lake = Lake.open(tmp_path / "lake", "features")
    waiting = Counter(
        tuple(outcome.values[name] for name in NAMES)
        for _, _, outcome in ingested.outcomes()
        if isinstance(outcome, Bad) and outcome.values is not None
    )
    before = read_arrow(lake, SOURCE.table).num_rows
    early = release_due(lake, SOURCE, NOW_MS)
    assert (early.events, early.waiting) == (0, waiting.total())
    assert early.next_ms == TOO_LATE_MS - SOURCE.max_skew_ms
    for _ in range(2):
        release_due(lake, SOURCE, MAX_TIME_MS)  # some texts are times of the year 9999
    rows = [r for r in read_arrow(lake, SOURCE.table).to_pylist() if r["at_ms"] >= TOO_LATE_MS]
    assert Counter(tuple(row[name] for name in NAMES) for row in rows) == waiting
    assert read_arrow(lake, SOURCE.table).num_rows == before + waiting.total()
    assert all(row["event_day"] == row["at_ms"] // DAY_MS for row in rows)


def test_accepted_and_rejected_rows_add_up_to_the_rows_of_the_files(ingested: Ingested) -> None:
    outcomes = [outcome for _, _, outcome in ingested.outcomes()]
    bad = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Bad))
    result = ingested.result
    assert result.rejected == bad
    assert set(bad) == REASONS
    assert result.accepted + sum(result.rejected.values()) == len(outcomes)
    assert list(result.rejected.values()) == sorted(bad.values(), reverse=True)


def test_a_run_is_one_commit_per_table(ingested: Ingested) -> None:
    for table in (SOURCE.table, SOURCE.rejected_table):
        newest = latest_snapshot(ingested.lake, table)
        assert newest is not None
        assert newest.id == 1
    assert ingested.result.events_snapshot == 1


def test_a_rejection_detail_names_column_value_and_expected_type(ingested: Ingested) -> None:
    details = {row["reason"]: row["detail"] for row in ingested.rejects()}
    columns = "|".join(NAMES)
    for reason, form in (
        ("wrong_type", rf"column ({columns}): expected .+, got '.*'"),
        ("not_finite", rf"column ({columns}): expected a finite .+, got .+"),
        ("missing_time", "column at_ms is null"),
        ("time_out_of_range", r"column at_ms: .* in the years 1 to 9999, got -?\d+"),
        ("time_in_future", r"column at_ms: .* at most 5min ahead of the clock, got \d+"),
        ("too_few_columns", r"expected 1[01] columns, got \d+"),
    ):
        assert re.fullmatch(form, details[reason]), details[reason]


def test_a_row_without_a_key_is_an_event_that_views_skip(
    ingested: Ingested,
) -> None:
    keys = read_arrow(ingested.lake, SOURCE.table, columns=["customer_id"])["customer_id"]
    assert keys.null_count > 0


def test_undeclared_columns_are_reported(ingested: Ingested) -> None:
    assert set(ingested.result.ignored_columns) == {"remark", "more", "unused"}
    assert ingested.result.absent_columns == ()


def test_times_of_every_unit_in_parquet_are_the_same_milliseconds(tmp_path: Path) -> None:
    source = pf.EventSource(
        "units", schema={"n": Int64, "t": Int64, "seen": pf.Timestamp}, event_time="t"
    )
    lake, folder = new_lake(tmp_path, source), tmp_path / "files"
    folder.mkdir()
    expected: dict[int, int] = {}
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when a test fails
    # pyarrow writes INT96 before 1970 with a negative time of day, which Flink does not read
    ticks = pa.array([1_999_999, 0, 1_300_000_000_123_999_999], pa.timestamp("ns"))
    int96 = "Arrow INT96", ticks, [1, 0, 1_300_000_000_123]
    for what, given, milliseconds in (*columns_of(random.Random(seed)), int96):
        if not what.startswith("Arrow") or "date" in what or "UTC" in what:
            continue
        numbers = [len(expected) + i for i in range(3)]
        expected |= dict(zip(numbers, milliseconds, strict=True))
        table = pa.table({"n": numbers, "t": given, "seen": given})
        path = folder / f"{len(expected)}.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps="INT96" in what)
    ingest_files(lake, source, [folder], state_dir=tmp_path / "state")
    rows = read_arrow(lake, source.table)
    assert dict(zip(rows["n"].to_pylist(), rows["t"].to_pylist(), strict=True)) == expected
    seen = rows["seen"].cast(pa.int64()).to_pylist()
    assert dict(zip(rows["n"].to_pylist(), seen, strict=True)) == expected


def test_known_files_are_skipped_without_a_job(ingested: Ingested) -> None:
    result = ingest_files(ingested.lake, SOURCE, ingested.files, state_dir=ingested.state_dir)
    assert result.run_id is None
    assert result.skipped == tuple(
        (str(path), f"ingested before, by run {ingested.result.run_id}") for path in ingested.files
    )


# -- further runs, on separate lakes


def test_a_mapped_file_is_ingested_again_on_request(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.csv"
    path.write_text('Number,Url,When\n1,"a,b",2010-12-01\n2,,x\n')
    mapping = {"id": "Number", "page": "Url", "at_ms": "When"}
    with pytest.raises(
        ConfigurationError, match="unknown column 'id'; available: Number, Url, When"
    ):
        ingest_files(lake, CLICKS, [path], state_dir=tmp_path)
    first = ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path)
    assert (first.accepted, first.rejected) == (1, {"wrong_type": 1})
    assert first.examples == {
        "wrong_type": f"column at_ms: expected int64 or a time, got 'x' ({path})"
    }
    assert ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path).run_id is None
    ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path, again=True)
    rows = read_arrow(lake, CLICKS.table).to_pylist()
    assert [(row["id"], row["page"], row["at_ms"]) for row in rows] == [
        (1, "a,b", 1_291_161_600_000)
    ] * 2
    assert read_arrow(lake, CLICKS.rejected_table).num_rows == 2


def test_a_run_interrupted_between_its_commits_is_completed_by_the_next(
    tmp_path: Path,
) -> None:
    lake = new_lake(tmp_path)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(clicks(0, 50))
    job = IngestJob(lake, CLICKS, tmp_path / "state", 1, None, None)
    file = inspect_file(first)
    run = job.ledger.begin([file], {}, 1_000_000_000_000)
    job.run(
        "batch",
        file_statements(CLICKS, group_files([file], CLICKS, {}), run.run),
        "it",
        (True, False),
    )
    # simulated crash: the events are committed, the rejected rows are not
    assert (len(ids(lake)), job.ledger.committed(run)) == (50, (True, False))

    second.write_text(clicks(50, 10))
    text = first.read_text()
    first.write_text(text + "more")
    with pytest.raises(ConfigurationError, match=f"{run.id}.*a.jsonl has been removed or changed"):
        ingest_files(lake, CLICKS, [second], state_dir=tmp_path / "state")
    first.write_text(text)
    result = ingest_files(lake, CLICKS, [second], state_dir=tmp_path / "state")
    assert (result.finished_run, result.accepted) == (run.id, 10)
    assert ids(lake) == list(range(60))
    rejects = read_arrow(lake, CLICKS.rejected_table).to_pylist()
    assert sorted(row["raw"] for row in rejects) == [f"broken {n}" for n in range(0, 60, 10)]
    assert [len(run.files) for run in job.ledger.runs()] == [1, 1]


def test_a_job_that_fails_commits_nothing_and_names_its_file(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress("\n".join(clicks(n, 10) for n in range(99)).encode())[:-100])
    with pytest.raises(ConfigurationError, match="cut.jsonl.gz: it cannot be read: Compressed"):
        ingest_files(lake, CLICKS, [cut], state_dir=tmp_path)
    pages = [random.Random(n).randbytes(50).hex() for n in range(20_000)]
    rows = pa.table({"id": range(20_000), "page": pages, "at_ms": [0] * 20_000})
    broken = tmp_path / "broken.parquet"
    pq.write_table(rows, broken, row_group_size=1_000)
    data = bytearray(broken.read_bytes())
    at = len(data) * 3 // 4  # so that the error occurs late
    data[at : at + 20_000] = bytes(20_000)
    broken.write_bytes(data)
    with pytest.raises(JobError, match="ingesting .*broken.parquet into 'clicks'"):
        ingest_files(lake, CLICKS, [broken], state_dir=tmp_path)
    assert latest_snapshot(lake, CLICKS.table) is None

    other = tmp_path / "other.csv"
    other.write_text("id,page,at_ms\n1,a,x\n")  # only invalid rows: no events, no unfinished run
    result = ingest_files(lake, CLICKS, [other], state_dir=tmp_path)
    assert result.forgotten_files == (str(broken),)
    assert (result.accepted, result.rejected, result.events_snapshot) == (
        0,
        {"wrong_type": 1},
        None,
    )
    assert latest_snapshot(lake, CLICKS.table) is None
    assert ingest_files(lake, CLICKS, [other], state_dir=tmp_path).run_id is None


def test_a_source_that_is_not_applied_or_not_for_files_is_rejected(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    with pytest.raises(UnknownNameError, match="'paimon-features apply' creates it"):
        ingest_files(lake, CLICKS, [tmp_path], state_dir=tmp_path)
    loop = FeedbackSource("loop", sample_keys={"id": Int64})
    with pytest.raises(ConfigurationError, match="FeedbackWriter"):
        ingest_files(lake, loop, [tmp_path], state_dir=tmp_path)


def test_a_run_whose_tables_are_taken_over_is_cancelled_and_left_to_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(clicks(0, 20))
    wait = module.await_job

    def taken_over(*arguments: Any) -> None:
        monkeypatch.undo()
        lease.release(lake, CLICKS.table)
        wait(*arguments)

    monkeypatch.setattr(module, "await_job", taken_over)
    with pytest.raises(LeaseLostError, match="table 'events_clicks': the lease with number 1"):
        ingest_files(lake, CLICKS, [path], state_dir=tmp_path)
    run = IngestLedger(lake, CLICKS).open_run()  # it did not write into the next owner's ledger
    assert run is not None
    ingest_files(lake, CLICKS, [path], state_dir=tmp_path)
    assert ids(lake) == list(range(20))


def test_concurrent_runs_are_rejected(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(clicks(0, 1))
    with (
        acquire(lake, CLICKS.rejected_table, purpose="test"),
        pytest.raises(OwnershipError, match=f"owned by process {os.getpid()}"),
    ):
        ingest_files(lake, CLICKS, [path], state_dir=tmp_path)
    assert IngestJob(lake, CLICKS, tmp_path, 1, None, None).ledger.open_run() is None


# -- kill -9


@pytest.mark.long
def test_a_killed_run_is_completed_exactly_once_by_the_next(
    tmp_path: Path,
) -> None:
    log = ROOT / "examples" / "retail" / "data" / "online_retail.parquet"
    # the half of the log is enough, and some rows of it cannot be events
    table = pq.read_table(log).slice(0, 250_000)
    times = table["invoice_time_ms"].to_pylist()
    times[::1000] = [None] * len(times[::1000])
    place = table.column_names.index("invoice_time_ms")
    pq.write_table(table.set_column(place, "invoice_time_ms", [times]), tmp_path / "log.parquet")
    (tmp_path / "features.py").write_text((ROOT / "examples/retail/features.py").read_text())
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    project = Project.open(tmp_path)
    project.apply()
    retail = project.definitions.source("retail")
    files = [tmp_path / "log.parquet"]

    killed = subprocess.Popen(
        [sys.executable, "-m", "paimon_features", "ingest", "files", "retail", str(files[0])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    ledger = IngestLedger(project.lake, retail)
    while ledger.open_run() is None:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    # from here on its job is planned, runs and commits
    moment = random.uniform(0, 8)
    print(f"killed after {moment:.3f} s")
    time.sleep(moment)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    deadline = time.monotonic() + 120
    while True:
        try:
            result = ingest_files(project.lake, retail, files, state_dir=tmp_path / "state")
            break
        except OwnershipError:
            # its JVM owns the tables until it notices that its client has ended
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert result.accepted == 249_750 or result.finished_run or result.skipped
    assert read_arrow(project.lake, "events_retail", columns=["quantity"]).num_rows == 249_750
    assert read_arrow(project.lake, "rejected_retail", columns=["reason"]).num_rows == 250
    assert [len(run.files) for run in ledger.runs()] == [1]


# -- the plan


def test_each_group_of_files_is_read_once_for_both_tables(ingested: Ingested) -> None:
    env = open_environment("batch", 1, OPTIONS, state_dir=ingested.state_dir)
    register_lake(env, ingested.lake)
    groups = group_files([inspect_file(path) for path in ingested.files], SOURCE, {})
    plan = explain(env, file_statements(SOURCE, groups, IngestRun("x", 1)))
    optimized = plan[plan.index("== Optimized Execution Plan ==") :]
    assert optimized.count("TableSourceScan(") == len(groups) == 5


# -- a topic


@pytest.fixture
def topic() -> KafkaTopic:
    return KafkaTopic("127.0.0.1:9092", "clicks", "g", topic_columns(CLICKS, {}))


def test_flink_plans_the_sql_of_a_topic_with_one_scan(tmp_path: Path, topic: KafkaTopic) -> None:
    lake = new_lake(tmp_path)
    env = open_environment("streaming", 1, OPTIONS, state_dir=tmp_path / "state")
    register_lake(env, lake)
    plan = explain(env, kafka_statements(CLICKS, topic, IngestRun("kafka-clicks-clicks", None)))
    optimized = plan[plan.index("== Optimized Execution Plan ==") :]
    assert optimized.count("TableSourceScan(") == 1
    assert "[topic, partition, offset]" in optimized
    assert optimized.count("Reused(reference_id=") == 2


def test_a_statement_is_planned_in_the_thread_that_parsed_it_whatever_other_threads_call(
    tmp_path: Path, topic: KafkaTopic
) -> None:
    from pyflink.java_gateway import get_gateway

    lake = new_lake(tmp_path)
    env = open_environment("streaming", 1, OPTIONS, state_dir=tmp_path / "state")
    register_lake(env, lake)
    java = get_gateway().jvm.java.lang.Thread
    inserts = prepare(env, kafka_statements(CLICKS, topic, IngestRun("kafka-clicks-clicks", None)))
    parsed_by = java.currentThread().getId()
    # another thread's call is open while the plan is made
    other = threading.Thread(target=java.sleep, args=(3000,))
    other.start()
    try:
        planned_by = java.currentThread().getId()
        plan = str(inserts.explain())
    finally:
        other.join()
    assert planned_by == parsed_by
    assert "TableSourceScan(" in plan
