"""One committing owner per table: others are rejected while it lives and take over when it is
dead."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import LeaseLostError, OwnershipError
from paimon_features.core.process import process_holder
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership import claims, lease
from paimon_features.lake.ownership.fence import Fence
from paimon_features.lake.ownership.lease import FlinkJobHolder, ProcessHolder, acquire, holders
from paimon_features.lake.table_folders import lease_folder
from tests.http_servers import HTTPServer
from tests.waiting import LONG_S, await_true

_HOLD = """
import sys, time
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.lease import acquire
acquire(Lake.open(sys.argv[1], "features"), "tiles", purpose="hold it")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(lake: Lake) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the lease on ``tiles``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, lake.warehouse],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def rewrite(path: Path, record: dict[str, Any]) -> None:
    """Replace a claim by one with other content."""
    content = {key: value for key, value in record.items() if key != "crc32"}
    path.write_text(json.dumps({**content, "crc32": claims._crc(content)}))


def test_a_second_process_is_rejected_until_the_first_is_killed(
    lake: Lake, other: subprocess.Popen[str]
) -> None:
    with pytest.raises(OwnershipError) as caught:
        acquire(lake, "tiles")
    message = str(caught.value)
    assert f"table 'tiles' is owned by process {other.pid} on" in message
    assert "UTC to hold it (it is running)" in message
    assert "paimon-features jobs --release tiles" in message
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with acquire(lake, "tiles", purpose="go on") as taken:
        assert taken.record.holder == ProcessHolder.current()
        assert [record.table for record in holders(lake)] == ["tiles"]
    assert holders(lake) == []


def test_a_zombie_process_counts_as_dead(lake: Lake, other: subprocess.Popen[str]) -> None:
    os.kill(other.pid, signal.SIGKILL)
    while not Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].startswith(" Z"):
        pass
    acquire(lake, "tiles").release()


def test_another_process_with_the_same_id_is_not_the_owner(
    lake: Lake, other: subprocess.Popen[str]
) -> None:
    path = lake.side_folder / "leases" / "features.tiles" / "claim-1"
    record = json.loads(path.read_text())
    record["holder"]["started"] -= 1  # so the record is of an earlier process with this id
    rewrite(path, record)
    acquire(lake, "tiles").release()


def test_a_process_is_known_by_its_host_its_boot_and_its_start(
    other: subprocess.Popen[str],
) -> None:
    holder = ProcessHolder.of(other.pid)
    assert holder.alive()[0]
    assert replace(holder, boot="earlier").alive() == (False, "the host was rebooted since")
    assert replace(holder, host="elsewhere", boot="other").alive()[0]  # it cannot be seen
    other.kill()
    other.wait()
    assert holder.alive() == (False, "it has ended")
    with pytest.raises(OwnershipError, match=f"process {other.pid} does not exist on this host"):
        ProcessHolder.of(other.pid)


def test_an_operator_can_release_a_lease_by_force(lake: Lake, other: subprocess.Popen[str]) -> None:
    released = lease.release(lake, "tiles")
    assert released is not None
    assert released.purpose == "hold it"
    acquire(lake, "tiles").release()
    assert lease.release(lake, "tiles") is None


def test_the_start_of_a_process_is_known_without_proc(other: subprocess.Popen[str]) -> None:
    if shutil.which("ps") is None:
        pytest.skip("ps is not installed")
    started = process_holder._process_start_of_ps(other.pid)
    assert started is not None
    assert started == process_holder._process_start_of_ps(other.pid)
    other.kill()
    # a zombie has no start time, either
    await_true(lambda: process_holder._process_start_of_ps(other.pid) is None)
    other.wait()
    assert process_holder._process_start_of_ps(other.pid) is None


def test_leases_on_other_tables_are_independent(lake: Lake) -> None:
    with acquire(lake, "a"), acquire(lake, "b"):
        assert [record.table for record in holders(lake)] == ["a", "b"]


def test_the_owner_may_acquire_again_which_ends_its_old_lease(lake: Lake) -> None:
    first = acquire(lake, "tiles")
    second = acquire(lake, "tiles")
    with pytest.raises(OwnershipError, match="no longer held"):
        first.check()
    first.release()  # must not release the second one
    second.check()
    second.release()
    assert lease.holder_of(lake, "tiles") is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"boot": "elsewhere"}, "it is on another machine, or this one was restarted since"),
        ({"host": "elsewhere", "boot": "elsewhere"}, "it is on another machine"),
        ({"namespace": "pid:[1]"}, r"another container \(PID namespace\) of this machine"),
    ],
)
def test_an_owner_that_cannot_be_seen_is_replaced_only_when_its_heartbeat_is_silent(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], why: str
) -> None:
    # its name and its process id are those of this process
    unseen = replace(ProcessHolder.current(), **changed)
    with monkeypatch.context() as patched:
        patched.setattr(claims, "BEAT_S", 0.5)
        patched.setattr(claims, "SILENT_BEATS", 240)
        with (
            acquire(lake, "tiles", unseen),
            pytest.raises(OwnershipError, match=f"{why}.*; its heartbeat continues"),
        ):
            acquire(lake, "tiles")
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    with monkeypatch.context() as patched:
        patched.setattr(lease.held, "add", lambda key, fence: None)  # nobody beats, as if killed
        silent = acquire(lake, "tiles", unseen)
    with acquire(lake, "tiles") as taken:
        assert taken.record.number == silent.record.number + 1
        with pytest.raises(LeaseLostError, match="number 3 is no longer held"):
            silent.check()


def test_a_process_without_a_heartbeat_that_cannot_be_seen_is_left_to_an_operator(
    lake: Lake,
) -> None:
    job = FlinkJobHolder("http://localhost:9", "0af1", replace(ProcessHolder.current(), boot="x"))
    lent = acquire(lake, "tiles")
    assert lent._fence.claim.beat_s is not None
    lent.transfer(job)
    path = lake.side_folder / "leases" / "features.tiles" / "claim-2"
    claim = json.loads(path.read_text())
    claim["writer"]["boot"] = "x"  # so localhost is not this machine
    rewrite(path, claim)
    with pytest.raises(OwnershipError, match=r"the address of another machine's cluster\)"):
        acquire(lake, "tiles")
    lease.release(lake, "tiles")
    acquire(lake, "tiles").release()


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[str, dict[str, tuple[int, str]]]]:
    """The part of Flink's REST API that a lease uses: job id -> (status, state)."""
    jobs: dict[str, tuple[int, str]] = {}
    monkeypatch.setattr(lease, "REST_TIMEOUT_S", LONG_S)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, state = jobs.get(self.path.removeprefix("/jobs/"), (404, ""))
            body = json.dumps({"state": state}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", jobs
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        ((200, "RUNNING"), "it is RUNNING"),
        ((200, "RESTARTING"), "it is RESTARTING"),
        ((503, ""), r"\(503\).*, so it is assumed to be running"),
        ((200, "FINISHED"), None),
        ((200, "FAILED"), None),
        ((200, "CANCELED"), None),
        ((404, ""), None),
    ],
)
def test_a_job_owns_its_lease_as_long_as_its_cluster_reports_it(
    lake: Lake,
    cluster: tuple[str, dict[str, tuple[int, str]]],
    answer: tuple[int, str],
    alive: str | None,
) -> None:
    url, jobs = cluster
    client = acquire(lake, "tiles", purpose="submit")
    job = client.transfer(FlinkJobHolder(url, "0af1"))
    client.release()  # the client ends; the job owns the lease now
    jobs["0af1"] = answer
    if alive is None:
        acquire(lake, "tiles").release()
    else:
        with pytest.raises(OwnershipError, match=f"Flink job 0af1 at {url} .*{alive}"):
            acquire(lake, "tiles")
    job.release()  # which ends its own lease only
    assert lease.holder_of(lake, "tiles") is None


def test_a_job_being_submitted_owns_its_lease_while_its_client_lives(
    lake: Lake, cluster: tuple[str, dict[str, tuple[int, str]]], other: subprocess.Popen[str]
) -> None:
    #  client   submits -------+ killed
    #  cluster           knows the job -------+ it ends
    #  lease    held ------------------------ + free
    url, jobs = cluster
    acquire(lake, "more", FlinkJobHolder(url, "0af1", client=ProcessHolder.of(other.pid)))
    with pytest.raises(OwnershipError, match=f"process {other.pid} on .* is submitting it"):
        acquire(lake, "more")
    jobs["0af1"] = (200, "RUNNING")
    other.kill()
    other.wait()
    with pytest.raises(OwnershipError, match="it is RUNNING"):
        acquire(lake, "more")
    jobs["0af1"] = (200, "FINISHED")
    acquire(lake, "more").release()


def test_an_unreachable_cluster_keeps_the_lease_unless_its_process_has_ended(
    lake: Lake,
) -> None:
    job = FlinkJobHolder("http://127.0.0.1:9", "0af1")
    acquire(lake, "tiles", job)
    with pytest.raises(OwnershipError, match=r"does not answer .*--release tiles"):
        acquire(lake, "tiles")
    lease.release(lake, "tiles")
    gone = replace(ProcessHolder.current(), started=1)
    acquire(lake, "tiles", replace(job, cluster=gone))
    acquire(lake, "tiles").release()


def test_a_job_that_has_ended_hands_its_lease_back(lake: Lake) -> None:
    job = FlinkJobHolder("http://127.0.0.1:9", "0af1")
    with acquire(lake, "tiles") as client:
        of_job = client.transfer(job)
        assert lake_fence(lake) is None  # this process must not commit for the job
        back = of_job.transfer(ProcessHolder.current())
        assert lake_fence(lake) is back._fence
        for former in (client, of_job):
            with pytest.raises(LeaseLostError, match="number 3 belongs to process"):
                former.check()
        back.release()
    assert holders(lake) == []


def lake_fence(lake: Lake) -> Fence | None:
    return lease.held.fence(str(lease_folder(lake, "tiles")))


def test_handing_over_a_lost_lease_is_rejected(lake: Lake) -> None:
    held = acquire(lake, "tiles")
    held.release()
    with pytest.raises(OwnershipError, match=r"number 2 belongs to no one \(it was released\)"):
        held.transfer(FlinkJobHolder("http://127.0.0.1:9", "0af1"))


def test_of_many_concurrent_processes_one_becomes_the_owner(lake: Lake) -> None:
    command = [sys.executable, "-c", _HOLD, lake.warehouse]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    running = [
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        lines = [process.stdout.readline() for process in running if process.stdout]
        assert sorted(lines) == ["", "", "", "held\n"]
    finally:
        for process in running:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()
