"""A warehouse on an object store without any shared folder: conditional puts decide every race."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    LeaseLostError,
    OwnershipError,
    StoreUnreachableError,
    TableError,
)
from paimon_features.core.types.schema import Int32, Int64
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow, table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import Record, lost_records
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.ownership import claims, lease
from paimon_features.lake.ownership.claims import RELEASED, ObjectClaims
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.storage.conditional import ConditionalStore
from paimon_features.lake.storage.filesystems import paimon_options
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.storage.object_path import ObjectPath
from paimon_features.lake.table_folders import lock_path
from paimon_features.lake.writing import table_writer as writer
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.lake.writing.table_writer import append_stream, committed_identifiers
from tests.servers.object_store import Disturbance, ObjectStore, object_store

pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")

SPEC = TableSpec("t", {"day": Int32, "n": Int64}, partition_by=("day",))


def rows(n: int) -> pa.Table:
    return pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([n], pa.int64())})


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectStore]:
    with object_store("bucket") as store:
        yield store


@pytest.fixture
def store(running: ObjectStore) -> Iterator[ObjectStore]:
    running.fail(0)
    running.requests.clear()
    yield running
    running.ignores_conditions = False


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return f"s3://bucket/{request.node.name.translate(str.maketrans('[]', '--'))}"


@pytest.fixture
def open_lake(store: ObjectStore, address: str) -> Callable[[], Lake]:
    """Opens the warehouse as another process would."""
    return lambda: Lake.open(address, "features", options=store.options)


@pytest.fixture
def lake(open_lake: Callable[[], Lake]) -> Lake:
    opened = open_lake()
    opened.create(SPEC)
    return opened


def numbers(lake: Lake) -> list[int]:
    found: list[int] = read_arrow(lake, "t").column("n").to_pylist()
    return sorted(found)


def test_everything_that_a_warehouse_records_is_inside_it(
    lake: Lake, open_lake: Callable[[], Lake]
) -> None:
    append_arrow(lake, "t", rows(1), commit_user="u", commit_identifier=1)
    append_arrow(lake, "t", rows(1), commit_user="u", commit_identifier=1)  # a repeat
    append_stream(lake, "t", [rows(2), rows(3)])
    create_tag(lake, "t", "two", 2)
    table_options.set_properties(lake, "t", {"owner": "ann"})
    generations.save(lake, GenerationRecord("v", 1, "t", "f", 1))
    generations.activate(lake, "v", 1)

    other = open_lake()
    assert numbers(other) == [1, 2, 3]
    assert committed_identifiers(other, "t", "u") == 1
    assert table_options.properties(other, "t") == {"owner": "ann"}
    active = generations.active(other, "v")
    assert active is not None
    assert active.table == "t"
    assert generations.views(other) == ["v"]
    with lease.acquire(other, "t", purpose="test"):
        assert [record.purpose for record in lease.holders(lake)] == ["test"]
    assert lost_records(other) == []
    kinds = {path.name for path in other.side_folder.iterdir()}
    assert kinds == {"commits", "generations", "leases", "locks"}

    with Overwrite(other, "t", "o") as overwrite:
        overwrite.replace(rows(9))
        overwrite.commit()
    assert numbers(lake) == [9]
    lake.drop("t")
    assert other.list() == []
    assert [removal.how for removal in table_history.removals(other, "t")] == ["dropped"]


def test_a_record_that_was_lost_is_detected(lake: Lake) -> None:
    record = Record(lake, "ingests", "features.s.json", "s", "t")
    record.write({"files": []})
    assert record.read() == {"files": []}
    record.path.unlink()
    assert [lost.kind for lost in lost_records(lake)] == ["ingests"]


def test_of_many_who_create_an_object_or_replace_a_version_one_succeeds(lake: Lake) -> None:
    path = lake.side_folder / "race" / "one"
    assert isinstance(path, ObjectPath)
    side = lake.side_folder
    assert isinstance(side, ObjectPath)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: path.create_text(f"by {n}"), range(8)))
        assert made.count(True) == 1
        assert path.read_text() == f"by {made.index(True)}"
        found = side.store.get((side / "race" / "one").key)
        assert found is not None
        key = (side / "race" / "one").key
        replaced = list(
            pool.map(lambda n: side.store.replace_if(key, f"then {n}", found.version), range(8))
        )
    assert replaced.count(True) == 1
    assert path.read_text() == f"then {replaced.index(True)}"
    path.unlink()
    path.unlink()
    assert not path.is_file()
    assert not side.store.replace_if(key, "again", found.version)


def test_a_store_that_ignores_conditions_is_refused(
    store: ObjectStore, open_lake: Callable[[], Lake]
) -> None:
    store.ignores_conditions = True
    with pytest.raises(ConfigurationError, match=r"ignores conditional requests .*side_folder"):
        open_lake().create(SPEC)
    assert open_lake().list() == []


@pytest.mark.long
def test_a_reply_that_is_lost_repeats_nothing(
    lake: Lake, store: ObjectStore, open_lake: Callable[[], Lake]
) -> None:
    for number in range(1, 5):
        part = ("/leases/", "/snapshot-", ".lock", "/commits/")[number - 1]
        store.lose_replies(1, lambda method, path, part=part: method == "PUT" and part in path)
        with lease.acquire(lake, "t"):
            append_arrow(lake, "t", rows(number), commit_user="u", commit_identifier=number)
        assert store.lost == 0, f"no request for {part} was made"
    assert numbers(lake) == [1, 2, 3, 4]
    assert [s.id for s in _history(lake)] == [1, 2, 3, 4]


def test_a_burst_of_503_delays_a_commit_and_a_longer_one_is_an_error(
    lake: Lake, store: ObjectStore, address: str
) -> None:
    store.fail(3, lambda method, path: "_paimon_features" in path)
    append_arrow(lake, "t", rows(1))
    assert store.failures == 0
    hasty = Lake.open(address, "features", options={**store.options, "attempts": "2"})
    store.fail(50, lambda method, path: ".lock" in path)
    with pytest.raises(StoreUnreachableError, match="failed each of 2 times"):
        append_arrow(hasty, "t", rows(2))
    store.fail(0)
    assert numbers(lake) == [1]


@pytest.mark.long
def test_random_faults_of_the_network_change_nothing(store: ObjectStore, address: str) -> None:
    # Arrow's client waits so long after each reply that was cut
    lake = Lake.open(address, "features", options={**store.options, "request-timeout-s": "2"})
    lake.create(SPEC)
    store.disturbance = faults = Disturbance(5, refused=0.05, lost=0.05, cut=0.05, latency_s=0.0)
    try:
        for number in (1, 2, 3):
            with lease.acquire(lake, "t"):
                append_arrow(lake, "t", rows(number), commit_user="u", commit_identifier=number)
    finally:
        store.disturbance = None
    assert all(faults.counts[kind] for kind in ("refused", "lost", "cut")), faults.counts
    assert numbers(lake) == [1, 2, 3]
    assert [s.id for s in _history(lake)] == [1, 2, 3]


# -- races --------------------------------------------------------------------------------------


_WRITER = """
import json, sys
import pyarrow as pa
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
address, options, first, count = json.loads(sys.argv[1])
lake = Lake.open(address, "features", options=options)
print("ready", flush=True)
sys.stdin.readline()
for n in range(first, first + count):
    rows = pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([n], pa.int64())})
    append_arrow(lake, "t", rows)
    print(n, flush=True)
"""


def _start(code: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.long
def test_no_commit_of_two_racing_processes_is_lost(lake: Lake, store: ObjectStore) -> None:
    writers = [_start(_WRITER, lake.warehouse, store.options, 100 * n, 4) for n in (1, 2)]
    for process in writers:
        assert _line(process) == "ready"
    for process in writers:
        _go(process)
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert numbers(lake) == [*range(100, 104), *range(200, 204)]
    history = _history(lake)
    assert [s.id for s in history] == list(range(1, 9))
    assert len({s.commit_user for s in history}) == 8


def test_the_lock_of_a_killed_process_is_free(lake: Lake, store: ObjectStore) -> None:
    holder = _start(_HOLDER, lake.warehouse, store.options)
    assert _line(holder) == "locked"
    with pytest.raises(TableError, match=f"process {holder.pid} on .* has held s3://"):
        _locked_for(lake, 0.2)
    holder.kill()
    holder.communicate()
    _locked_for(lake, 0.2)


_HOLDER = """
import json, sys
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.table_folders import lock_path
address, options = json.loads(sys.argv[1])
lake = Lake.open(address, "features", options=options)
with locked(lock_path(lake, "t"), "holding"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def _locked_for(lake: Lake, timeout_s: float) -> None:
    with locked(lock_path(lake, "t"), "testing", timeout_s):
        pass


def test_threads_take_turns(lake: Lake) -> None:
    path = lake.side_folder / "counts" / "one.json"
    write_json(path, {"count": 0})

    def add(_: int) -> None:
        with locked(lock_path(lake, "t"), "counting"):
            write_json(path, {"count": read_json(path)["count"] + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))
    assert read_json(path) == {"count": 12}


# -- fencing ------------------------------------------------------------------------------------


def _take_lock(lake: Lake) -> None:
    """What a process does that finds the lock's holder silent."""
    path = lock_path(lake, "t")
    assert isinstance(path, ObjectPath)
    lock = ObjectClaims(path)
    assert lock.follow(lock.newest(), RELEASED) is not None


def test_a_commit_whose_lock_was_taken_over_is_not_made(
    lake: Lake, open_lake: Callable[[], Lake]
) -> None:
    #  lake    lock ............. check: lost
    #  other        takes it over, commits 5
    other = open_lake()

    def produced() -> Iterator[pa.Table]:
        yield rows(1)
        _take_lock(other)
        append_arrow(other, "t", rows(5))

    with pytest.raises(LeaseLostError, match="the lock .* is no longer held by process"):
        append_stream(lake, "t", produced())
    assert numbers(lake) == [5]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_commit_that_paused_after_its_last_check_is_not_made(
    lake: Lake, open_lake: Callable[[], Lake], monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    #  lake    lock, check, paused ................ its snapshot is refused
    #  other                 takes it over, commits the same rows, or others
    #  Paimon alone would commit after the other one: the rows would be there twice
    other = open_lake()
    fence_check = lease.committing.__wrapped__  # type: ignore[attr-defined]
    first = True

    def paused(of: Lake, table: str, what: str) -> Any:
        for check in fence_check(of, table, what):

            def check_and_pause(check: Callable[[], None] = check) -> None:
                nonlocal first
                check()
                if of is lake and first:
                    first = False
                    _take_lock(other)
                    number = 1 if repeats else 2
                    append_arrow(
                        other, "t", rows(number), commit_user="u", commit_identifier=number
                    )

            yield check_and_pause

    monkeypatch.setattr(writer, "committing", contextmanager(paused))
    refused = pytest.raises(TableError, match="another process committed snapshot 1")
    with nullcontext() if repeats else refused:
        append_arrow(lake, "t", rows(1), commit_user="u", commit_identifier=1)
    assert numbers(lake) == ([1] if repeats else [2])
    assert [s.id for s in _history(lake)] == [1]


_OWNER = """
import json, sys
import pyarrow as pa
from paimon_features.lake import append_arrow
from paimon_features.lake.ownership import claims, lease
from paimon_features.core.process import process_holder
from paimon_features.lake.catalog import Lake
address, options, boot, beat_s = json.loads(sys.argv[1])
claims.BEAT_S = beat_s
if boot:
    process_holder._boot_id = lambda: boot
lake = Lake.open(address, "features", options=options)
rows = pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([7], pa.int64())})
held = lease.acquire(lake, "t", purpose="append")
append_arrow(lake, "t", rows)
print("committed", flush=True)
sys.stdin.readline()
try:
    append_arrow(lake, "t", rows)
    print("committed", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.long
def test_a_process_of_another_machine_that_was_paused_commits_nothing_more(
    lake: Lake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = _start(_OWNER, lake.warehouse, store.options, "another machine", 0.5)
    assert _line(owner) == "committed"
    with pytest.raises(OwnershipError, match="its heartbeat continues"):
        lease.acquire(lake, "t")
    os.kill(owner.pid, signal.SIGSTOP)
    with lease.acquire(lake, "t", purpose="take over"):
        append_arrow(lake, "t", rows(8))
        os.kill(owner.pid, signal.SIGCONT)
        _go(owner)
        assert _line(owner) == "LeaseLostError"
        owner.communicate(timeout=120)
    assert numbers(lake) == [7, 8]


def test_a_lock_whose_holder_cannot_be_seen_is_taken_over_once_its_heartbeat_is_silent(
    lake: Lake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock_path(lake, "t")
    assert isinstance(path, ObjectPath)
    lock = ObjectClaims(path)
    holder = {"host": "far", "pid": 1, "started": 1, "boot": "far", "namespace": "far"}
    claim = lock.follow(lock.newest(), {"holder": holder, "purpose": "work", "beat_s": 0.5})
    assert claim is not None
    stop = threading.Event()

    def beat() -> None:
        count = 0
        while not stop.wait(0.02):
            count += 1
            lock.beat(claim, count)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(claims, "SILENT_BEATS", 1_000)
            with pytest.raises(TableError, match="process 1 on far has held"):
                _locked_for(lake, 0.1)
    finally:
        stop.set()
        beating.join()
    _locked_for(lake, 0.1)


# -- settings -----------------------------------------------------------------------------------


def test_keys_are_not_shown(lake: Lake, store: ObjectStore) -> None:
    side = lake.side_folder
    assert isinstance(side, ObjectPath)
    store.key = "other"
    try:
        with pytest.raises(ConfigurationError, match="rejects these credentials") as caught:
            side.store.get("anything")
    finally:
        store.key = "known"
    shown = [repr(lake), repr(side), str(side), repr(side.store), str(caught.value)]
    assert not any("secret" in text for text in shown)
    again = pickle.loads(pickle.dumps(side))
    assert (again / "a").exists() is False


def test_a_forked_process_is_refused_in_place_of_waiting_for_ever(lake: Lake) -> None:
    side = lake.side_folder
    assert isinstance(side, ObjectPath)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            side.store.get("anything")
        except TableError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"start it with spawn" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)


def test_the_same_settings_are_options_of_paimon_in_java() -> None:
    found = {"endpoint": "http://minio:9000", "access_key": "k", "secret_key": "s", "region": "eu"}
    assert paimon_options("s3://b/w", found) == {
        "s3.endpoint": "http://minio:9000",
        "s3.path.style.access": "true",
        "s3.endpoint.region": "eu",
        "s3.access-key": "k",
        "s3.secret-key": "s",
    }
    assert paimon_options("s3://b/w", {}) == {}
    assert paimon_options("hdfs://n/w", {}) == {}
    with pytest.raises(ConfigurationError, match="OSS has an S3 interface"):
        paimon_options("oss://b/w", {"endpoint": "oss.example.com"})


def test_keys_are_relative_to_the_warehouse() -> None:
    store = ConditionalStore("s3://bucket/w", {})
    assert store.key("s3://bucket/w/f.db/t/snapshot/LATEST") == "f.db/t/snapshot/LATEST"
    assert store.key("s3://bucket/wide/x") is None


def _history(lake: Lake) -> list[Any]:
    from paimon_features.lake import snapshots

    assert latest_snapshot(lake, "t") is not None
    return list(snapshots(lake, "t"))
