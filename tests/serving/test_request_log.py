"""The request log of a worker: which answers, what of them, and that no request pays for it."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import SALT_VARIABLE
from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.core.types.schema import Date, Decimal, Float64, Int64, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureRef,
    FeatureView,
    Interaction,
    RequestSource,
)
from paimon_features.definitions.aggregates import Count, First, Last, Max, Mean, Sum, SumBy, TopK
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher, OnlineResponse
from paimon_features.serving.request_log import spool_folder
from paimon_features.serving.request_log.log import RequestLog, salt_of_environment
from paimon_features.serving.request_log.log_rows import EntityText, dumps, loads, log_schema
from paimon_features.serving.request_log.spool import SpoolFile, read_spool, recover
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S, await_true

NOW = 1_700_000_000_000
SALT = b"0123456789abcdef"
BUYS = EventSource(
    "buys",
    schema={
        "user": Int64, "day": Date, "t": Int64, "x": Float64, "price": Decimal(10, 2),
        "word": String, "n": Int64,
    },
    event_time="t",
)  # fmt: skip
VIEW = FeatureView(
    "buys",
    source=BUYS,
    entity=Entity("user_day", keys={"user": Int64, "day": Date}),
    features=[
        Sum("x", windows=["1h"]), Mean("x", windows=["1d"]), Last("price", windows=["1d"]),
        Sum("price", as_decimal=True, windows=["1d"]), Last("word", windows=["1d"]),
        Max("n", windows=["1d"]), Count(windows=["1h"]), First("day", windows=["1d"]),
        SumBy("n", by="word", values=["a", "ü|"], other="else", windows=["1d"]),
        TopK("word", n=2, windows=["1d"]),
    ],
)  # fmt: skip
DAY = dt.date(2023, 11, 14)


@pytest.fixture(scope="module")
def fetcher(tmp_path_factory: pytest.TempPathFactory) -> FeatureFetcher:
    rng = random.Random(1)
    events = [
        {
            "user": rng.randrange(4),
            "day": (DAY - dt.date(1970, 1, 1)).days,
            "t": NOW - rng.randrange(3_000_000),
            "x": rng.gauss(0, 1) * 10.0 ** rng.randint(-200, 200),
            "price": decimal.Decimal(rng.randint(-10_000, 10_000)).scaleb(-2),
            "word": rng.choice(["a", "ü|", 'quo"te', "\n"]),
            "n": rng.choice([2**53 + 1, -5]),
        }
        for _ in range(60)
    ]
    lake = TileLake(tmp_path_factory.mktemp("lake"), VIEW)
    store = MemoryStore(lambda: NOW)
    lake.commit(events)
    lake.materializer(store, clock=lambda: NOW).run_once()
    return FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: NOW)


def read(fetcher: FeatureFetcher, users: list[int]) -> OnlineResponse:
    refs = [FeatureRef("buys", f.name) for f in VIEW.compiled.features]
    return fetcher.get(refs, {"user": users, "day": [DAY] * len(users)}, NOW)


def opened(folder: Path, **options: Any) -> RequestLog:
    options = {"rate": 1.0, "flush_interval_s": 0.01, "clock_ms": lambda: NOW, **options}
    return RequestLog(folder, PROJECT, **options)


def note_and_wait(log: RequestLog, request_id: str, response: OnlineResponse) -> None:
    """Note a response, which the log's thread writes or drops before it gets another one."""
    log.note(request_id, "", response)
    stats = log.stats
    await_true(lambda: stats.written + stats.dropped_disk == stats.rows)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.arrow"))
    return [row for path in files for row in read_spool(path, log_schema()).rows.to_pylist()]


def test_a_row_per_entity_and_view_has_every_value_to_the_bit(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    response = read(fetcher, [3, 1, 99])
    log = opened(tmp_path)
    assert log.note("r1", "buying_v1", response)
    log.close()
    rows = rows_of(tmp_path)
    assert [row["entity"] for row in rows] == ["[3,19675]", "[1,19675]", "[99,19675]"]
    assert [row["row"] for row in rows] == [0, 1, 2]
    expected = response.to_pylist()
    days = dt.date(1970, 1, 1)
    for row, wanted in zip(rows, expected, strict=True):
        values = json.loads(row["feature_values"])
        assert list(values) == response.features
        for feature in VIEW.compiled.features:
            got, want = loads(feature.type, values[feature.name]), wanted[feature.name]
            if isinstance(want, dt.date):
                want = (want - days).days
            assert type(got) is type(want)
            assert got == want
            if isinstance(got, float):
                assert struct.pack("d", got) == struct.pack("d", want)
    assert [json.loads(row["feature_statuses"])["count_1h"] for row in rows] == [
        "PRESENT", "PRESENT", "MISSING",
    ]  # fmt: skip
    common = ("request_id", "service", "project", "view", "as_of_ms", "generation", "incarnation")
    assert {tuple(row[name] for name in common) for row in rows} == {
        ("r1", "buying_v1", PROJECT, "buys", NOW, 1, 0)
    }
    assert [row["record_snapshot"] for row in rows] == [1, 1, None]
    assert [row["applied_snapshot"] for row in rows] == [1, 1, 1]
    assert log.stats.written == log.stats.rows == 3


def test_interactions_are_rows_of_their_own_with_their_inputs(tmp_path: Path) -> None:
    source = EventSource("clicks", schema={"user": Int64, "t": Int64, "n": Int64}, event_time="t")
    view = FeatureView(
        "clicks", source=source, entity=Entity("user", keys={"user": Int64}),
        features=[Sum("n", windows=["1d"]), Count(windows=["1d"])],
    )  # fmt: skip
    request = RequestSource("pay", schema={"amount": Float64})
    share = Interaction("share", "ratio(amount, clicks:sum_n_1d, zero=0)", request=request)
    defined = Definitions.of([view, share])
    lake, store = TileLake(tmp_path / "lake", view), MemoryStore()
    lake.commit([{"user": 1, "t": NOW, "n": 3}])
    lake.materializer(store).run_once()
    outputs = [FeatureRef("clicks", "count_1d"), defined.interaction("share")]
    got = FeatureFetcher(PROJECT, [view.compiled], store, clock=lambda: NOW).get(
        outputs, {"user": [1, 2]}, NOW + 1, {"amount": [0.1, None]}
    )
    log = opened(tmp_path / "spool")
    log.note("r", "", got)
    log.close()
    clicks, shares = rows_of(tmp_path / "spool")[:2], rows_of(tmp_path / "spool")[2:]
    # the sum was not requested, and is present because the interaction is computed from it
    assert json.loads(clicks[0]["feature_values"]) == {"count_1d": 1, "sum_n_1d": 3}
    assert [row["view"] for row in shares] == ["", ""]
    assert [json.loads(row["inputs"]) for row in shares] == [{"amount": 0.1}, {"amount": None}]
    assert json.loads(shares[0]["feature_values"]) == {"share": 0.1 / 3}


def test_the_rate_is_kept_and_an_id_is_always_or_never_of_the_sample(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    response = read(fetcher, [1])
    log = opened(tmp_path / "a", rate=0.05, max_pending=1)
    other = opened(tmp_path / "b", rate=0.05, max_pending=1)
    for prefix in ("1f2e3d4c5b6a-", "req-", "00-4bf92f3577b34da6a3ce929d0e0e"):
        ids = [f"{prefix}{number}" for number in range(20_000)]
        sampled = [log.note(one, "", response) for one in ids]
        assert 700 < sum(sampled) < 1_300
        assert sampled == [other.note(one, "", response) for one in ids]
    log.close(), other.close()
    never = opened(tmp_path / "c", rate=0.0)
    assert not any(never.note(str(number), "", response) for number in range(1_000))
    never.close()


def test_hashed_entities_show_no_key_and_are_equal_for_equal_keys_and_salts_only(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    log = opened(tmp_path, salt=SALT)
    log.note("r", "", read(fetcher, [1, 2, 1]))
    log.close()
    texts = [row["entity"] for row in rows_of(tmp_path)]
    assert texts[0] == texts[2] != texts[1]
    assert all(text.startswith("blake2:") and "19675" not in text for text in texts)
    assert EntityText(SALT)([1, 19675]) == texts[0]
    assert EntityText(SALT + b"x")([1, 19675]).split(":")[1:] != texts[0].split(":")[1:]


def test_a_salt_that_is_missing_or_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SALT_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match="is not set; set it to a secret"):
        salt_of_environment()
    monkeypatch.setenv(SALT_VARIABLE, "short")
    with pytest.raises(ConfigurationError, match="has 5 characters"):
        salt_of_environment()


def test_what_finds_no_room_in_memory_is_dropped_and_counted(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    log = opened(tmp_path, max_pending=10, flush_interval_s=60.0)
    response = read(fetcher, [1, 2, 3])
    for number in range(5):
        log.note(str(number), "", response)
    log.close()
    assert (log.stats.noted, log.stats.rows) == (5, 15)
    assert (log.stats.written, log.stats.dropped_overload) == (9, 6)
    assert len(rows_of(tmp_path)) == 9


def test_of_a_large_request_some_entities_are_logged_and_the_others_counted(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    log = opened(tmp_path)
    log.note("r", "", read(fetcher, list(range(1_000))))
    log.close()
    assert [row["row"] for row in rows_of(tmp_path)] == list(range(0, 1_000, 10))
    assert log.stats.left_out == 900


def test_files_are_completed_by_size_and_by_age_and_hold_each_row_once(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    sizes, ages = tmp_path / "size", tmp_path / "age"
    by_size = opened(sizes, max_file_bytes=20_000, max_age_s=3600)
    by_age = opened(ages, max_age_s=0.2)
    response = read(fetcher, [1, 2])
    for number in range(40):
        note_and_wait(by_size, f"r{number}", response)
    assert by_size.stats.files > 1
    for number in range(2):
        note_and_wait(by_age, f"r{number}", response)
        # though nobody writes any more
        await_true(lambda number=number: by_age.stats.files == number + 1)
    assert by_age.stats.files == 2
    for log, folder, requests in ((by_size, sizes, 40), (by_age, ages, 2)):
        log.close()
        assert len(list(folder.glob("*.arrow"))) == log.stats.files
        keys = [(row["request_id"], row["row"]) for row in rows_of(folder)]
        assert sorted(keys) == sorted((f"r{n}", i) for n in range(requests) for i in (0, 1))
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("*/*.arrow")} == {"0o600"}


def test_a_folder_without_permission_costs_samples_and_no_request(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    # root may write anywhere, but not here
    parent = Path("/sys") if os.geteuid() == 0 else tmp_path
    tmp_path.chmod(0o500)
    try:
        _costs_samples_only(parent / "spool", fetcher)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_is_a_file_costs_samples_and_no_request(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    (tmp_path / "spool").write_text("in the way")
    _costs_samples_only(tmp_path / "spool", fetcher)


def _costs_samples_only(folder: Path, fetcher: FeatureFetcher) -> None:
    log = opened(folder)
    assert log.note("r", "", read(fetcher, [1, 2]))
    log.close()
    assert (log.stats.written, log.stats.dropped_disk) == (0, 2)
    assert str(folder) in log.stats.last_error


def test_on_a_full_disk_rows_are_dropped_and_files_stay_readable(
    tmp_path: Path, fetcher: FeatureFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_folder, "_RETRY_S", 0.0)
    disk = _SmallDisk(30_000)
    monkeypatch.setattr("paimon_features.serving.request_log.spool.os", disk)
    log = opened(tmp_path)
    response = read(fetcher, [1, 2])
    for number in range(60):
        if number == 50:
            disk.room = 10**9  # somebody made room
        note_and_wait(log, f"r{number}", response)
    log.close()
    rows = rows_of(tmp_path)
    assert log.stats.dropped_disk > 0
    assert log.stats.written + log.stats.dropped_disk == log.stats.rows == 120
    # a file that could not be ended for lack of room is there under its open name
    recover(tmp_path)
    files = [read_spool(path, log_schema()) for path in tmp_path.glob("*.arrow")]
    assert sum(file.rows.num_rows for file in files) == log.stats.written
    assert [file.torn_bytes for file in files] == [0] * len(files)
    assert "r59" in {row["request_id"] for row in rows}


class _SmallDisk:
    """The operating system with a disk on which so many bytes have room."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: Any) -> int:
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        written = os.write(file, data[: self.room])
        self.room -= written
        return written

    def ftruncate(self, file: int, size: int) -> None:
        self.room += os.fstat(file).st_size - size
        os.ftruncate(file, size)


def test_nothing_is_written_to_a_folder_that_holds_enough(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    (tmp_path / "old.arrow").write_bytes(b"x" * 1_000)
    log = opened(tmp_path, max_spool_bytes=1_000)
    log.note("r", "", read(fetcher, [1]))
    log.close()
    assert log.stats.dropped_disk == 1
    assert "request-log --follow" in log.stats.last_error


_KILLED = """
import sys, time
from pathlib import Path
import pyarrow as pa
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import SpoolFile, described_schema
file = SpoolFile(Path(sys.argv[1]), "w-1-a-000001", described_schema(log_schema(), "shop", "w"))
row = {name: None for name in log_schema().names}
for number in range(3):
    file.append(pa.RecordBatch.from_pylist([{**row, "request_id": str(number)}] * 2, log_schema()))
print("written", flush=True)
time.sleep(60)
"""


def test_what_a_killed_worker_wrote_is_recovered_and_a_torn_end_is_reported(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "written\n"
        assert recover(tmp_path) == []  # it lives
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
    [path] = recover(tmp_path)
    whole = path.read_bytes()
    assert (
        read_spool(path, log_schema()).rows.num_rows,
        read_spool(path, log_schema()).torn_bytes,
    ) == (6, 0)
    # killed in the middle of a write, or power lost: the end is short, or zeros
    batch = (len(whole) - len(whole) // 8) - 100
    for torn in (whole[:-5], whole[:batch], whole + b"\0" * 64, whole + whole[-200:-90]):
        path.write_bytes(torn)
        found = read_spool(path, log_schema())
        assert found.torn_bytes > 0
        assert found.rows.num_rows in (4, 6)


def test_a_file_of_something_else_is_no_spool_file(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    for data in (b"", b"hello", b"\0" * 100):
        path.write_bytes(data)
        with pytest.raises(TableError, match=r"x\.arrow"):
            read_spool(path, log_schema())
    file = SpoolFile(tmp_path, "y", pa.schema([("a", pa.int64())]))
    file.complete()
    with pytest.raises(TableError, match="another version wrote it"):
        read_spool(tmp_path / "y.arrow", log_schema())


def test_a_new_worker_recovers_the_files_of_dead_ones(
    tmp_path: Path, fetcher: FeatureFetcher
) -> None:
    dead = opened(tmp_path, worker="w1", flush_interval_s=0.01)
    dead.note("r1", "", read(fetcher, [1]))
    await_true(lambda: dead.stats.written)
    assert dead._spool._file is not None
    dead._spool._file.abandon()  # as the operating system does when a process is killed
    alive = opened(tmp_path, worker="w1")
    alive.note("r2", "", read(fetcher, [1]))
    alive.close()
    assert alive.stats.recovered == 1
    assert sorted(row["request_id"] for row in rows_of(tmp_path)) == ["r1", "r2"]
    dead._spool._file = None
    dead.close()


def test_an_infinite_number_costs_its_request_and_is_counted(
    tmp_path: Path, fetcher: FeatureFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(float("nan"))
    log = opened(tmp_path)
    response = read(fetcher, [1])
    monkeypatch.setattr(log._maker, "rows", lambda noted: [dumps(float("inf"))])
    log.note("r", "", response)
    log.close()
    assert log.stats.dropped_defect == 1
    assert "ValueError" in log.stats.last_error


def test_a_log_that_cannot_be_completed_in_time_drops_its_rows_counts_and_says_so(
    tmp_path: Path,
    fetcher: FeatureFetcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, response = opened(tmp_path), read(fetcher, [1, 2])
    begun, go_on = threading.Event(), threading.Event()
    make = log._maker.rows

    def stuck(noted: Any) -> Any:
        begun.set()
        assert go_on.wait(LONG_S)
        return make(noted)

    monkeypatch.setattr(log._maker, "rows", stuck)
    log.note("r1", "", response)
    assert begun.wait(LONG_S)
    log.note("r2", "", response)
    log.note("r3", "", response)
    log.close(0.01)
    log.close(0.01)
    log.note("r4", "", response)
    assert [record.getMessage() for record in caplog.records] == [
        "the request log could not be completed in time: 4 rows are dropped, and 2 that are being "
        "written may be lost"
    ]
    assert log.stats.dropped_overload == 6
    go_on.set()
    log.close()
    assert log.stats.written == 2
    assert {row["request_id"] for row in rows_of(tmp_path)} == {"r1"}


@pytest.mark.parametrize("options", [{"rate": 1.5}, {"rate": -0.1}, {"max_pending": 0}])
def test_settings_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="request log"):
        opened(tmp_path, **options)
