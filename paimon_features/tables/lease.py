"""Leases: one committing owner per table, a process or a Flink job.

A lease is a JSON file per table, changed under a file lock. It is held as long as its holder
lives, which is asked where it can be known: a process of the operating system, a job of Flink's
REST interface, not of the client that submitted it. A dead holder's lease is taken over.
"""

from __future__ import annotations

import calendar
import os
import socket
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from paimon_features.clock import now_ms
from paimon_features.errors import JobError, OwnershipError
from paimon_features.flink_rest import ENDED, FlinkRest
from paimon_features.tables.catalog import Lake
from paimon_features.tables.files import locked, read_json, write_json

REST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessHolder:
    """A process: its start time tells it from a later one with the same number."""

    host: str
    pid: int
    started: int
    """When it started: clock ticks since the host's boot (Linux), else seconds since 1970."""
    boot: str = ""
    """The host's boot, for process numbers begin anew with it."""

    @classmethod
    def current(cls) -> ProcessHolder:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessHolder:
        """A running process of this host."""
        started = _process_start(pid)
        if started is None:
            raise OwnershipError(f"there is no process {pid} on this host to hold a lease")
        return cls(socket.gethostname(), pid, started, _boot_id())

    def alive(self) -> tuple[bool, str]:
        """Whether it runs, and how that is known."""
        if self.host != socket.gethostname():
            return True, "it is on another host, where this one cannot look"
        if self.boot != _boot_id():
            return False, "the host was started anew since"
        running = _process_start(self.pid) == self.started
        return running, "it is running" if running else "it has ended"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class FlinkJobHolder:
    """A job of a Flink cluster, by the address of its REST interface and the job's id.

    ``cluster`` is the cluster's own process where it runs on this host: a cluster that was
    stopped cannot be asked any more, but its process can be seen to be gone. ``client`` is the
    process that is submitting the job, which holds as long as it lives: a cluster does not know
    a job that is on its way.
    """

    rest_url: str
    job_id: str
    cluster: ProcessHolder | None = None
    client: ProcessHolder | None = None

    def alive(self) -> tuple[bool, str]:
        """Whether it runs, and how that is known; a cluster that does not answer says yes."""
        if self.client is not None and self.client.alive()[0]:
            return True, f"{self.client} is submitting it"
        if self.cluster is not None and not self.cluster.alive()[0]:
            return False, "its cluster has ended"
        try:
            state = FlinkRest(self.rest_url, REST_TIMEOUT_S).state(self.job_id)
        except JobError as error:
            return True, f"its state is unknown ({error}), so it counts as running"
        if state is None:
            return False, "its cluster does not know it"
        return state not in ENDED, f"it is {state}"

    def __str__(self) -> str:
        return f"Flink job {self.job_id} at {self.rest_url}"


Holder = ProcessHolder | FlinkJobHolder


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What is written about a lease: the table, who holds it, since when (UTC ms), what for."""

    table: str
    holder: Holder
    purpose: str
    since_ms: int
    token: int
    """Grows with each acquisition of the table's lease: tells an old holder from the current."""


class Lease:
    """A held lease. As a context manager it is released at the end of the block."""

    def __init__(self, lake: Lake, record: LeaseRecord) -> None:
        self.lake = lake
        self.record = record

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give it back; harmless when it was handed on, taken over or released before."""
        path = _path(self.lake, self.record.table)
        with _guard(self.lake, self.record.table):
            current = _load(path)
            if current is not None and current == self.record:
                write_json(path, {"token": self.record.token})

    def transfer(self, holder: Holder) -> None:
        """Hand it to another holder, for example to the job that this process has submitted.

        Raises
        ------
        OwnershipError
            If it is no longer held by this lease.
        """
        path = _path(self.lake, self.record.table)
        with _guard(self.lake, self.record.table):
            self._check(_load(path))
            record = replace(self.record, holder=holder)
            write_json(path, _to_json(record))
        # this object goes on with the old record: its release() must not take the job's lease

    def check(self) -> None:
        """Raise OwnershipError unless the lease is still held as it was acquired."""
        self._check(_load(_path(self.lake, self.record.table)))

    def _check(self, current: LeaseRecord | None) -> None:
        if current != self.record:
            raise OwnershipError(
                f"the lease on table {self.record.table!r} is no longer held by "
                f"{self.record.holder}; it is held by {current.holder if current else 'no one'}"
            )


def acquire(lake: Lake, table: str, holder: Holder | None = None, purpose: str = "write") -> Lease:
    """Become the committing owner of a table; ``holder`` is this process by default.

    A holder that has died is taken over. The same holder may acquire again: it gets a new lease
    and its old one ends.

    Raises
    ------
    OwnershipError
        If another holder lives, or cannot be asked; it names the holder and what to do.
    """
    claimant = ProcessHolder.current() if holder is None else holder
    path = _path(lake, table)
    with _guard(lake, table):
        current = _load(path)
        if current is not None and current.holder != claimant:
            alive, why = current.holder.alive()
            if alive:
                raise OwnershipError(_refusal(table, current, why))
        token = int((read_json(path) or {}).get("token", 0)) + 1
        record = LeaseRecord(table, claimant, purpose, now_ms(), token)
        write_json(path, _to_json(record))
    return Lease(lake, record)


def release(lake: Lake, table: str) -> LeaseRecord | None:
    """End a lease by force, whoever holds it; returns what it was, None if it was free.

    For an operator who knows that the holder is gone: two owners can make a table wrong.
    """
    path = _path(lake, table)
    with _guard(lake, table):
        current = _load(path)
        if current is not None:
            write_json(path, {"token": current.token})
    return current


def holder_of(lake: Lake, table: str) -> LeaseRecord | None:
    """Who holds the lease of a table, alive or not; None if it is free."""
    return _load(_path(lake, table))


def holders(lake: Lake) -> list[LeaseRecord]:
    """All leases that are held, by table name; the holders need not be alive."""
    folder = lake.side_folder / "leases"
    records = (_load(path) for path in sorted(folder.glob(f"{lake.database}.*.json")))
    return [record for record in records if record is not None]


def _refusal(table: str, current: LeaseRecord, why: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(current.since_ms / 1000))
    how = (
        "cancel the job (`paimon-features cancel`)"
        if isinstance(current.holder, FlinkJobHolder)
        else "stop the process, or wait until it is done"
    )
    return (
        f"table {table!r} is owned by {current.holder} since {since} UTC to {current.purpose} "
        f"({why}); a table has one committing owner at a time: {how}. If it is certainly gone: "
        f"`paimon-features jobs --release {table}`"
    )


def _path(lake: Lake, table: str) -> Path:
    return lake.side_folder / "leases" / f"{lake.database}.{table}.json"


def _guard(lake: Lake, table: str) -> Any:
    path = lake.side_folder / "leases" / f"{lake.database}.{table}.lock"
    return locked(path, f"the lease of table {table!r}")


def _to_json(record: LeaseRecord) -> dict[str, Any]:
    kind = "flink_job" if isinstance(record.holder, FlinkJobHolder) else "process"
    return {**asdict(record), "kind": kind}


def _load(path: Path) -> LeaseRecord | None:
    raw = read_json(path)
    if raw is None or "holder" not in raw:
        return None
    fields = {key: value for key, value in raw.items() if key != "kind"}
    described = dict(raw["holder"])
    if raw["kind"] == "process":
        fields["holder"] = ProcessHolder(**described)
    else:
        for process in ("cluster", "client"):
            if described.get(process) is not None:
                described[process] = ProcessHolder(**described[process])
        fields["holder"] = FlinkJobHolder(**described)
    return LeaseRecord(**fields)


def _process_start(pid: int) -> int | None:
    """When a process started, None if it does not run (a zombie does not)."""
    if not os.path.exists("/proc/self/stat"):
        return _process_start_of_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command may hold blanks and brackets, so count from behind its last bracket
    after = stat[stat.rindex(")") + 2 :].split()
    return None if after[0] in ("Z", "X") else int(after[19])


def _process_start_of_ps(pid: int) -> int | None:
    """The same where there is no /proc, in seconds since 1970."""
    asked = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = asked.stdout.strip().partition(" ")
    if not started or state.startswith("Z"):
        return None
    return calendar.timegm(time.strptime(started.strip(), "%a %b %d %H:%M:%S %Y"))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""
