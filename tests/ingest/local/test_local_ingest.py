"""``ingest --engine local``: the rows of the reference, exactly once, without Java.

``tests/flink/ingest/test_engines_agree_flink.py`` compares it with Flink.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    JobError,
    LeaseLostError,
    OwnershipError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Bool, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import EventSource, FeedbackSource
from paimon_features.ingest import file_ingestion as module
from paimon_features.ingest.cells import lines
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.ingest.ingest_progress import IngestProgress
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.ingest.local import files as job_module
from paimon_features.ingest.local import sampling
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import Lake, latest_snapshot, read_arrow, table_options
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.specs import events_spec, rejected_spec
from paimon_features.lake.writing.table_writer import append_files
from paimon_features.testing.sizes import every_seed
from tests.flink.ingest.click_source import CLICKS, clicks, new_lake
from tests.flink.ingest.ingest_inputs import NAMES, NOW_MS, SOURCE, write_all
from tests.flink.ingest.reference_ingest import Bad
from tests.servers.object_store import ObjectStore, object_store

ROOT = Path(__file__).parents[3]


def ids(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, CLICKS.table, columns=["id"])["id"].to_pylist())


@every_seed(6)
def test_rows_are_those_of_the_reference_whatever_the_size_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", random.Random(seed).choice([100, 3_000, 8 << 20]))
    inputs = tmp_path / str(seed) / "in puts"
    inputs.mkdir(parents=True)
    files = dict(write_all(inputs, seed))
    lake = new_lake(inputs.parent, SOURCE)
    result = ingest_files(lake, SOURCE, [inputs], state_dir=tmp_path / "state")
    expected: Counter[Any] = Counter()
    bad: Counter[Any] = Counter()
    for path, outcomes in files.items():
        for raw, outcome in outcomes:
            if isinstance(outcome, Bad):
                plain = outcome.values is None and path.suffix != ".parquet"
                bad[str(path), outcome.reason, raw if plain else ""] += 1
            else:
                expected[tuple(outcome[name] for name in NAMES)] += 1
    rows = read_arrow(lake, SOURCE.table).to_pylist()
    assert Counter(tuple(row[name] for name in NAMES) for row in rows) == expected
    assert {row["event_day"] - row["at_ms"] // DAY_MS for row in rows} == {0}
    assert {row["ingest_time_ms"] for row in rows} == {IngestLedger(lake, SOURCE).runs()[0].time_ms}
    rejects = read_arrow(lake, SOURCE.rejected_table).to_pylist()
    found: Counter[Any] = Counter()
    for row in rejects:
        plain = row["reason"] != "time_in_future" and not row["origin"].endswith(".parquet")
        if not plain:
            assert set(json.loads(row["raw"])) == set(NAMES)
        found[row["origin"], row["reason"], row["raw"] if plain else ""] += 1
        assert row["ingest_id"] == result.run_id
    assert found == bad
    assert result.accepted == expected.total()
    assert sum(result.rejected.values()) == bad.total()
    for table in (SOURCE.table, SOURCE.rejected_table):
        newest = latest_snapshot(lake, table)
        assert newest is not None
        assert newest.id == 1


@pytest.mark.parametrize(("days", "per_day", "chosen"), [(100, 3, 8), (100, 30, 8), (40, 3, 1)])
def test_a_first_ingest_chooses_partitions_by_the_density_of_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, per_day: int, chosen: int
) -> None:
    monkeypatch.setattr(sampling, "SAMPLED_EVENTS", 1_000)
    lake = new_lake(tmp_path)
    rows = [f"{n},p,{n % days * DAY_MS}" for n in range(days * per_day)]
    (tmp_path / "sparse.csv").write_text("\n".join(["id,page,at_ms", *rows]))
    ingest_files(lake, CLICKS, [tmp_path / "sparse.csv"], state_dir=tmp_path / "state")
    assert table_options.partition_days(lake, CLICKS.table) == chosen
    found = read_arrow(lake, CLICKS.table)
    assert found.num_rows == days * per_day
    assert {*found["event_day"].to_pylist()} == {day // chosen * chosen for day in range(days)}


def test_defined_partitions_are_not_chosen_again(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    table_options.set_partition_days(lake, CLICKS.table, 1)
    rows = [f"{n},p,{n * DAY_MS}" for n in range(100)]
    (tmp_path / "sparse.csv").write_text("\n".join(["id,page,at_ms", *rows]))
    ingest_files(lake, CLICKS, [tmp_path / "sparse.csv"], state_dir=tmp_path / "state")
    assert sorted(read_arrow(lake, CLICKS.table)["event_day"].to_pylist()) == [*range(100)]


def test_known_files_are_skipped_and_ingested_again_on_request(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.csv"
    path.write_text('Number,Url,When\n1,"a,b",2010-12-01\n2,,x\n')
    mapping = {"id": "Number", "page": "Url", "at_ms": "When"}
    first = ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path)
    assert (first.accepted, first.rejected) == (1, {"wrong_type": 1})
    assert first.examples == {
        "wrong_type": f"column at_ms: expected int64 or a time, got 'x' ({path})"
    }
    assert ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path).run_id is None
    ingest_files(lake, CLICKS, [path], mapping, state_dir=tmp_path, again=True)
    assert ids(lake) == [1, 1]


def test_a_run_interrupted_between_its_commits_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(clicks(0, 50))
    second.write_text(clicks(50, 10))
    real = append_files

    def only_rejected(of: Lake, name: str, *arguments: Any) -> Any:
        if name == CLICKS.table:
            raise OSError("killed")
        return real(of, name, *arguments)

    monkeypatch.setattr(job_module, "append_files", only_rejected)
    with pytest.raises(OSError, match="killed"):
        ingest_files(lake, CLICKS, [first], state_dir=tmp_path / "state")
    monkeypatch.setattr(job_module, "append_files", real)
    ledger = IngestLedger(lake, CLICKS)
    run = ledger.open_run()
    assert run is not None
    assert ledger.committed(run) == (False, True)
    # the files of rows that were not committed are gone
    assert not list(Path(lake.path(CLICKS.table)).rglob("*.parquet"))
    result = ingest_files(lake, CLICKS, [second], state_dir=tmp_path / "state")
    assert (result.finished_run, result.accepted) == (run.id, 10)
    assert ids(lake) == list(range(60))
    rejects = read_arrow(lake, CLICKS.rejected_table).to_pylist()
    assert sorted(row["raw"] for row in rejects) == [f"broken {n}" for n in range(0, 60, 10)]


def test_a_file_that_cannot_be_read_to_its_end_commits_nothing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    pages = [random.Random(n).randbytes(50).hex() for n in range(20_000)]
    rows = pa.table({"id": range(20_000), "page": pages, "at_ms": [0] * 20_000})
    broken = tmp_path / "broken.parquet"
    pq.write_table(rows, broken, row_group_size=1_000)
    data = bytearray(broken.read_bytes())
    at = len(data) * 3 // 4
    data[at : at + 20_000] = bytes(20_000)
    broken.write_bytes(data)
    with pytest.raises(JobError, match=r"ingesting .*broken.parquet into 'clicks': .*broken"):
        ingest_files(lake, CLICKS, [broken], state_dir=tmp_path)
    assert latest_snapshot(lake, CLICKS.table) is None
    other = tmp_path / "other.csv"
    other.write_text("id,page,at_ms\n1,a,x\n")
    result = ingest_files(lake, CLICKS, [other], state_dir=tmp_path)
    assert result.forgotten_files == (str(broken),)
    assert (result.accepted, result.rejected) == (0, {"wrong_type": 1})


def test_a_source_that_is_not_applied_or_not_for_files_is_rejected(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    with pytest.raises(UnknownNameError, match="'paimon-features apply' creates it"):
        ingest_files(lake, CLICKS, [tmp_path], state_dir=tmp_path)
    loop = FeedbackSource("loop", sample_keys={"id": Int64})
    with pytest.raises(ConfigurationError, match="FeedbackWriter"):
        ingest_files(lake, loop, [tmp_path], state_dir=tmp_path)


def test_a_run_whose_tables_are_taken_over_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(clicks(0, 20))
    monkeypatch.setattr(job_module, "REPORT_S", 0.0)

    def report(_: IngestProgress) -> None:
        lease.release(lake, CLICKS.rejected_table)

    with pytest.raises(LeaseLostError, match="table 'rejected_clicks'"):
        ingest_files(lake, CLICKS, [path], state_dir=tmp_path, progress=report)
    assert latest_snapshot(lake, CLICKS.table) is None
    ingest_files(lake, CLICKS, [path], state_dir=tmp_path)
    assert ids(lake) == list(range(20))


def test_concurrent_runs_are_rejected(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(clicks(0, 1))
    ingesting = (
        "import sys; from tests.flink.ingest.click_source import CLICKS, new_lake\n"
        "from pathlib import Path; from paimon_features.ingest.local.files import ingest_files\n"
        "folder = Path(sys.argv[1])\n"
        "ingest_files(new_lake(folder), CLICKS, [folder / 'a.jsonl'], state_dir=folder)"
    )
    with acquire(lake, CLICKS.rejected_table, purpose="test"):
        other = subprocess.run(
            [sys.executable, "-c", ingesting, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert OwnershipError.__name__ in other.stderr
    assert f"owned by process {os.getpid()}" in other.stderr
    assert IngestLedger(lake, CLICKS).open_run() is None


KILLED = """
import sys
from pathlib import Path
from tests.flink.ingest.click_source import CLICKS, new_lake
from paimon_features.ingest.local.files import ingest_files
folder = Path(sys.argv[1])
print("started", flush=True)
ingest_files(new_lake(folder), CLICKS, [folder / "files"], state_dir=folder / "state")
"""


def test_a_killed_run_is_completed_exactly_once_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for number in range(4):
        text = clicks(30_000 * number, 30_000)
        (tmp_path / "files" / f"{number}.jsonl").write_text(text)
    lake = new_lake(tmp_path)
    for _ in range(2):
        killed = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert killed.stdout is not None
        killed.stdout.readline()
        moment = random.uniform(0, 2)
        print(f"killed after {moment:.3f} s")  # shown when the test fails
        time.sleep(moment)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    ingest_files(lake, CLICKS, [tmp_path / "files"], state_dir=tmp_path / "state")
    assert ids(lake) == list(range(120_000))
    assert read_arrow(lake, CLICKS.rejected_table).num_rows == 12_000
    assert [len(run.files) for run in IngestLedger(lake, CLICKS).runs()] == [4]


def test_progress_counts_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "REPORT_S", 0.0)
    lake = new_lake(tmp_path)
    (tmp_path / "a.jsonl").write_text(clicks(0, 20))
    seen: list[IngestProgress] = []
    ingest_files(lake, CLICKS, [tmp_path / "a.jsonl"], state_dir=tmp_path, progress=seen.append)
    assert seen[-1].rows_read == 22


ORDERS = EventSource(
    "orders",
    schema={"order_id": String, "n": Int64, "gone": Bool, "at_ms": Int64},
    event_time="at_ms",
    retraction="gone",
    event_id="order_id",
    dedup_horizon="1h",
)
SOON = 1_000_000
"""Rows with these numbers have times an hour after the clock, all others long before."""


def lines_of(*rows: tuple[str | None, int, bool | None]) -> str:
    soon_ms = NOW_MS + HOUR_MS + ORDERS.max_skew_ms
    return "".join(
        json.dumps({"order_id": i, "n": n, "gone": gone, "at_ms": soon_ms if n >= SOON else 0})
        + "\n"
        for i, n, gone in rows
    )


def test_duplicates_within_and_across_files_and_runs_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path, ORDERS)

    def ingest(at_ms: int, name: str, *rows: tuple[str | None, int, bool | None]) -> IngestResult:
        monkeypatch.setattr(module, "now_ms", lambda: at_ms)
        (tmp_path / name).write_text(lines_of(*rows))
        return ingest_files(lake, ORDERS, [tmp_path / name], state_dir=tmp_path / "state")

    first = ingest(
        NOW_MS, "1.jsonl", ("a", 1, False), ("a", 2, False), ("a", 3, True), ("b", 4, False),
        (None, 5, False), ("c", 6, None), ("f", SOON, False),
    )  # fmt: skip
    assert first.accepted == 3
    assert first.rejected == {
        "time_in_future": 1, "bad_retraction": 1, "duplicate": 1, "missing_event_id": 1
    }  # fmt: skip
    assert first.examples["duplicate"].startswith("column order_id: a came before, within 1h (")
    # interrupted after the commit of the events: the same rows are rejected again
    real = job_module.LocalIngestJob.run_files

    def only_events(job: Any, groups: Any, run: Any, doing: Any, _: Any) -> None:
        real(job, groups, run, doing, (True, False))
        raise OSError("killed")

    monkeypatch.setattr(job_module.LocalIngestJob, "run_files", only_events)
    with pytest.raises(OSError, match="killed"):
        ingest(NOW_MS + HOUR_MS - 1, "2.jsonl", ("a", 7, False), ("d", 9, False), ("d", 8, False))
    monkeypatch.setattr(job_module.LocalIngestJob, "run_files", real)
    third = ingest(NOW_MS + HOUR_MS, "3.jsonl", ("a", 10, False), ("d", 11, False), ("a", 12, True))
    assert third.finished_run is not None
    assert third.released == 1
    kept = sorted(read_arrow(lake, ORDERS.table, ["n"])["n"].to_pylist())
    # at the horizon of 1 h, the id "a" is new again
    assert kept == [1, 3, 4, 8, 10, 12, SOON]
    rejects = read_arrow(lake, ORDERS.rejected_table).to_pylist()
    found = {int(json.loads(row["raw"])["n"]) for row in rejects if row["reason"] == "duplicate"}
    assert found == {2, 7, 9, 11}


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectStore]:
    pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")
    with object_store("ingest") as store:
        yield store


@pytest.mark.long
def test_a_warehouse_on_an_object_store(tmp_path: Path, bucket: ObjectStore) -> None:
    lake = Lake.open("s3://ingest/lake", "features", options=bucket.options)
    lake.create(events_spec(CLICKS.table, CLICKS.schema))
    lake.create(rejected_spec(CLICKS.rejected_table))
    path = tmp_path / "a.jsonl"
    path.write_text(clicks(0, 50))
    result = ingest_files(lake, CLICKS, [path], state_dir=tmp_path / "state")
    assert (result.accepted, result.rejected) == (50, {"unreadable": 5})
    assert ids(lake) == list(range(50))
    assert ingest_files(lake, CLICKS, [path], state_dir=tmp_path / "state").run_id is None


def test_an_empty_source_of_events_is_committed_as_nothing(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    (tmp_path / "a.csv").write_text("id,page,at_ms\n")
    pq.write_table(
        pa.table({"id": pa.array([], pa.int64()), "page": pa.array([], pa.string()),
                  "at_ms": pa.array([], pa.int64())}),
        tmp_path / "b.parquet",
    )  # fmt: skip
    result = ingest_files(
        lake, CLICKS, [tmp_path / "a.csv", tmp_path / "b.parquet"], state_dir=tmp_path / "state"
    )
    assert (result.accepted, dict(result.rejected), len(result.files)) == (0, {}, 2)
