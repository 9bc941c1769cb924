"""An owner whose lease was taken over commits nothing more, however it commits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import LeaseLostError, OwnershipError
from paimon_features.core.types.schema import Int32, Int64
from paimon_features.lake import append_arrow, append_stream, read_arrow, table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.rollback import rollback
from paimon_features.lake.metadata.snapshots import latest_snapshot
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TableSpec, tiles_spec
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.lake.writing.sorted_files import SortedFiles

ROOT = Path(__file__).parents[2]
ROWS = pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([1], pa.int64())})


def _append(lake: Lake) -> None:
    append_arrow(lake, "t", ROWS)


def _append_again(lake: Lake) -> None:
    append_arrow(lake, "t", ROWS, commit_user="u", commit_identifier=5)


def _append_stream(lake: Lake) -> None:
    append_stream(lake, "t", iter([ROWS]))


def _overwrite(lake: Lake) -> None:
    with Overwrite(lake, "t", "u") as overwrite:
        overwrite.replace(ROWS)
        overwrite.commit()


def _empty(lake: Lake) -> None:
    with Overwrite(lake, "t", "u") as overwrite:
        overwrite.empty({"day": 1})
        overwrite.commit()


def _roll_back(lake: Lake) -> None:
    rollback(lake, generations.get(lake, "v", 1), 1)


def _drop(lake: Lake) -> None:
    lake.drop("t")


def _set_properties(lake: Lake) -> None:
    table_options.set_properties(lake, "t", {"a": "b"})


PREPARED: list[Callable[[Lake], None]] = [
    _append, _append_again, _append_stream, _overwrite, _empty,
]  # fmt: skip
"""Commits that write files between the lock and the snapshot."""
COMMITS = [*PREPARED, _roll_back, _drop, _set_properties]


@pytest.fixture
def table(lake: Lake) -> Lake:
    """A table with two snapshots."""
    spec = TableSpec(
        "t", {"day": Int32, "n": Int64}, partition_by=("day",), options={"bucket": "-1"}
    )
    lake.create(spec)
    for _ in range(2):
        append_arrow(lake, "t", ROWS)
    generations.save(lake, GenerationRecord("v", 1, "t", "abc", 1, state="active"))
    return lake


def _take_over(lake: Lake, name: str = "t") -> lease.Lease:
    """Take a table over from this process, as another one would that found it silent."""
    lease.release(lake, name)
    other = acquire(lake, name, ProcessHolder.of(os.getppid()), purpose="take over")
    other._forget()  # it is the lease of another process
    return other


@pytest.mark.parametrize("commit", COMMITS, ids=lambda commit: commit.__name__)
def test_a_commit_of_a_former_owner_is_refused(table: Lake, commit: Callable[[Lake], None]) -> None:
    with acquire(table, "t"):
        _take_over(table)
        before = table_options.properties(table, "t")
        pattern = (
            rf"table 't': the lease with number 1 is no longer held by process {os.getpid()} on "
            rf".* number 3 belongs to process {os.getppid()} on"
        )
        with pytest.raises(LeaseLostError, match=pattern):
            commit(table)
        newest = latest_snapshot(table, "t")
        assert newest is not None
        assert newest.id == 2
        assert table_options.properties(table, "t") == before
        assert generations.get(table, "v", 1).incarnation == 0
        assert table_history.removals(table, "t") == ()


@pytest.mark.parametrize("commit", PREPARED, ids=lambda commit: commit.__name__)
def test_a_process_without_the_lease_commits_only_while_nobody_owns_the_table(
    table: Lake, commit: Callable[[Lake], None]
) -> None:
    #  a trainer next to maintenance: both commit, and one of two commits at once may be lost
    other = _take_over(table)
    with pytest.raises(OwnershipError, match=f"owned by process {os.getppid()} .* to take over"):
        commit(table)
    newest = latest_snapshot(table, "t")
    assert newest is not None
    assert newest.id == 2
    other.release()
    commit(table)
    assert lease.holder_of(table, "t") is None


def test_the_lease_of_a_dead_owner_does_not_prevent_commits(table: Lake) -> None:
    gone = replace(ProcessHolder.current(), started=1)
    dead = acquire(table, "t", gone)
    dead._forget()
    append_arrow(table, "t", ROWS)
    assert lease.holder_of(table, "t") is None
    with pytest.raises(LeaseLostError):
        dead.check()


def test_an_owner_that_comes_in_between_is_seen_under_the_lock(
    table: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    unowned = lease._unowned

    def slow(lake: Lake, name: str) -> int | None:
        found = unowned(lake, name)
        if lease.holder_of(lake, name) is None:
            _take_over(lake, name)
        return found

    monkeypatch.setattr(lease, "_unowned", slow)
    with pytest.raises(OwnershipError, match="to take over"):
        append_arrow(table, "t", ROWS)


@pytest.mark.parametrize("commit", PREPARED, ids=lambda commit: commit.__name__)
def test_a_lease_that_is_lost_between_the_lock_and_the_commit_is_refused_as_well(
    table: Lake, commit: Callable[[Lake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    #  a file system whose locks do not work among hosts: the check before the commit remains
    with acquire(table, "t") as held:
        checks = 0
        check = held._fence.check

        def checked() -> None:
            nonlocal checks
            checks += 1
            if checks == 2:
                lease.release(table, "t")
            check()

        monkeypatch.setattr(held._fence, "check", checked)
        with pytest.raises(LeaseLostError):
            commit(table)
        assert checks == 2
        newest = latest_snapshot(table, "t")
        assert newest is not None
        assert newest.id == 2


def test_sorted_files_of_a_former_owner_are_deleted(lake: Lake) -> None:
    spec = tiles_spec("tiles", {"user": Int64}, [("p_n", Int64, "sum")], 1)
    lake.create(spec)
    rows = pa.table(
        {name: pa.array([1], field.type) for name, field in _fields(lake, "tiles")}
    ).to_batches()[0]
    with (
        acquire(lake, "tiles"),
        SortedFiles(lake, "tiles", {"user": Int64}, "tile_day") as files,
    ):
        files.write(rows)
        _take_over(lake, "tiles")
        with pytest.raises(LeaseLostError):
            files.commit("u")
    assert latest_snapshot(lake, "tiles") is None
    assert not list(Path(lake.path("tiles")).rglob("*.parquet"))


def _fields(lake: Lake, name: str) -> Iterator[tuple[str, pa.Field]]:
    return ((field.name, field) for field in lake.schema(name))


def test_a_lease_inside_a_lease_ends_the_outer_one(table: Lake) -> None:
    with acquire(table, "t"):
        with acquire(table, "t"):
            append_arrow(table, "t", ROWS)
        with pytest.raises(LeaseLostError, match="number 1 is no longer held"):
            append_arrow(table, "t", ROWS)


def test_every_commit_checks_the_lease() -> None:
    """Whoever adds a commit has to make it inside ``lease.committing``, and checks the lease."""
    free = {"tags.py", "lease.py", "catalog.py", "commit_lock.py", "staging.py", "table_folders.py"}
    for package in ("paimon_features", "trainer_bridge"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            assert "lock_path(" not in text or path.name in free, path
            commits = len(re.findall(r"\.new_commit\(\)", text))
            assert commits <= len(re.findall(r"\bcheck\(\)", text)), path
            assert not commits or " committing(" in text, path


# -- real processes ------------------------------------------------------------------------------

_OWNER = """
import sys
import pyarrow as pa
from paimon_features.lake.ownership import claims, lease
from paimon_features.core.process import process_holder
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
claims.BEAT_S = 0.5
if sys.argv[2]:
    process_holder._boot_id = lambda: sys.argv[2]
lake = Lake.open(sys.argv[1], "features")
rows = pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([1], pa.int64())})
held = lease.acquire(lake, "t", purpose="append")
append_arrow(lake, "t", rows)
print("committed", flush=True)
for line in sys.stdin:
    try:
        append_arrow(lake, "t", rows)
        print("committed", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


_CONTENDER = """
import sys
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.lease import acquire
acquire(Lake.open(sys.argv[1], "features"), "t")
"""


class Owner:
    """Another process that owns the table; each ``commit`` returns what came of it."""

    def __init__(self, lake: Lake, boot: str, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _OWNER, lake.warehouse, boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._line() == "committed"

    def commit(self) -> str:
        self._stream(self.process.stdin).write("again\n")
        self._stream(self.process.stdin).flush()
        return self._line()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._stream(self.process.stdin).close()
        self._stream(self.process.stdout).close()

    def _line(self) -> str:
        return self._stream(self.process.stdout).readline().strip()

    def _stream(self, stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


@pytest.mark.long
def test_a_paused_owner_on_another_machine_is_replaced_and_commits_nothing(table: Lake) -> None:
    owner = Owner(table, boot="another machine")
    try:
        assert owner.commit() == "committed"
        with pytest.raises(OwnershipError, match="its heartbeat continues"):
            acquire(table, "t")
        os.kill(owner.process.pid, signal.SIGSTOP)
        with acquire(table, "t", purpose="replace it") as taken:
            append_arrow(table, "t", ROWS)
            os.kill(owner.process.pid, signal.SIGCONT)
            answer = owner.commit()
            assert answer.startswith("LeaseLostError table 't': the lease with number 1")
            assert f"number 2 belongs to process {os.getpid()} on" in answer
            append_arrow(table, "t", ROWS)
            taken.check()
        assert owner.commit().startswith("LeaseLostError")
    finally:
        owner.end()
    newest = latest_snapshot(table, "t")
    assert newest is not None
    assert newest.id == 2 + 2 + 2
    assert read_arrow(table, "t").num_rows == 6


def test_a_paused_owner_of_this_machine_keeps_its_table(table: Lake) -> None:
    owner = Owner(table, boot="")
    try:
        os.kill(owner.process.pid, signal.SIGSTOP)
        with pytest.raises(OwnershipError, match="it is running"):
            acquire(table, "t")
        os.kill(owner.process.pid, signal.SIGCONT)
        assert owner.commit() == "committed"
    finally:
        owner.end()
    acquire(table, "t").release()


UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def _may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("mount", [(), ("--mount-proc",)], ids=["/proc of the host", "own /proc"])
def test_owners_in_two_pid_namespaces_do_not_mistake_each_other_for_dead(
    table: Lake, mount: tuple[str, ...]
) -> None:
    #  both are process 1 or 2 of the same host name, and neither sees the other
    if not _may_unshare():
        pytest.skip("unshare(1) is missing, or PID namespaces are not permitted here")
    owner = Owner(table, boot="", prefix=(*UNSHARE, *mount))
    try:
        with pytest.raises(OwnershipError, match=r"another container \(PID namespace\)"):
            acquire(table, "t")
        contender = subprocess.run(
            [*UNSHARE, *mount, sys.executable, "-c", _CONTENDER, table.warehouse],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert "its heartbeat continues" in contender.stderr
        assert owner.commit() == "committed"
    finally:
        owner.end()
    with acquire(table, "t") as taken:  # once its heartbeat has stopped
        assert taken.record.number == 2


def test_a_child_that_was_forked_does_not_beat_for_its_parent(table: Lake) -> None:
    with acquire(table, "t") as held:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with acquire(table, "other"):
                names = list(lease.held._beats)
            os.write(writing, json.dumps(names).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            beating: Any = json.loads(answer.read())
        os.waitpid(child, 0)
        assert len(beating) == 1
        assert held._fence.claim.nonce not in beating


def test_a_child_forked_while_another_thread_looks_at_the_leases_commits(table: Lake) -> None:
    before = read_arrow(table, "t").num_rows
    with acquire(table, "t"):
        with lease.held._lock:  # as the thread that beats holds it now and then
            child = os.fork()
            if child == 0:
                signal.alarm(120)
                append_arrow(table, "t", ROWS)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert read_arrow(table, "t").num_rows == before + ROWS.num_rows


def test_the_holder_of_a_record_is_the_same_after_json() -> None:
    holder = ProcessHolder.current()
    assert ProcessHolder(**json.loads(json.dumps(lease.asdict(holder)))) == holder
    assert holder.is_near()
    assert not replace(holder, namespace="pid:[1]").is_near()
