"""Leases: each table has one committing owner, a process or a Flink job.

A lease is a JSON file per table, changed under a file lock. It is valid while its holder is alive:
a process, according to the operating system; a job, according to Flink's REST interface, not to
the client that submitted it. The lease of a dead holder is taken over.
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
    """A process, identified by its id and its start time, because ids are reused."""

    host: str
    pid: int
    started: int
    """The start time: clock ticks since boot (Linux), else seconds since 1970."""
    boot: str = ""
    """The boot id of the host, because process ids restart with it."""

    @classmethod
    def current(cls) -> ProcessHolder:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessHolder:
        """A running process of this host."""
        started = _process_start(pid)
        if started is None:
            raise OwnershipError(f"process {pid} does not exist on this host")
        return cls(socket.gethostname(), pid, started, _boot_id())

    def alive(self) -> tuple[bool, str]:
        """Whether it is alive, and the reason."""
        if self.host != socket.gethostname():
            return True, "it is on another host, whose processes are unknown here"
        if self.boot != _boot_id():
            return False, "the host was rebooted since"
        running = _process_start(self.pid) == self.started
        return running, "it is running" if running else "it has ended"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class FlinkJobHolder:
    """A job of a Flink cluster, by the address of its REST interface and the job's id.

    ``cluster`` is the cluster's process if it runs on this host: a stopped cluster does not
    respond,
    but its process is known to have ended. ``client`` is the process that submits the job, which
    counts as the holder until the cluster knows the job.
    """

    rest_url: str
    job_id: str
    cluster: ProcessHolder | None = None
    client: ProcessHolder | None = None

    def alive(self) -> tuple[bool, str]:
        """Whether it is alive, and the reason; without a response from the cluster it is."""
        if self.client is not None and self.client.alive()[0]:
            return True, f"{self.client} is submitting it"
        if self.cluster is not None and not self.cluster.alive()[0]:
            return False, "its cluster has ended"
        try:
            state = FlinkRest(self.rest_url, REST_TIMEOUT_S).state(self.job_id)
        except JobError as error:
            return True, f"its state is unknown ({error}), so it is assumed to be running"
        if state is None:
            return False, "its cluster does not know it"
        return state not in ENDED, f"it is {state}"

    def __str__(self) -> str:
        return f"Flink job {self.job_id} at {self.rest_url}"


Holder = ProcessHolder | FlinkJobHolder


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The record of a lease: table, holder, start (UTC ms), purpose."""

    table: str
    holder: Holder
    purpose: str
    since_ms: int
    token: int
    """Increases with each acquisition, to distinguish old holders from the current one."""


class Lease:
    """An acquired lease. As a context manager, it is released at the end of the block."""

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
        """Release it; does nothing if it was handed over, taken over or released before."""
        path = _path(self.lake, self.record.table)
        with _guard(self.lake, self.record.table):
            current = _load(path)
            if current is not None and current == self.record:
                write_json(path, {"token": self.record.token})

    def transfer(self, holder: Holder) -> None:
        """Hand it over to another holder, such as the job that this process submitted.

        Raises
        ------
        OwnershipError
            If this lease is no longer valid.
        """
        path = _path(self.lake, self.record.table)
        with _guard(self.lake, self.record.table):
            self._check(_load(path))
            record = replace(self.record, holder=holder)
            write_json(path, _to_json(record))
        # this object keeps the old record: its release() must not end the job's lease

    def check(self) -> None:
        """Raise OwnershipError unless the lease is still valid."""
        self._check(_load(_path(self.lake, self.record.table)))

    def _check(self, current: LeaseRecord | None) -> None:
        if current != self.record:
            raise OwnershipError(
                f"the lease on table {self.record.table!r} is no longer held by "
                f"{self.record.holder}; it is held by {current.holder if current else 'no one'}"
            )


def acquire(lake: Lake, table: str, holder: Holder | None = None, purpose: str = "write") -> Lease:
    """Acquire the lease of a table; ``holder`` is this process by default.

    The lease of a dead holder is taken over. The same holder may acquire again: its old lease
    ends.

    Raises
    ------
    OwnershipError
        If another holder is alive or its state is unknown; the message says what to do.
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
    """Release a lease by force; return its record, None if it was free.

    For operators who know that the holder is dead: two owners can corrupt a table.
    """
    path = _path(lake, table)
    with _guard(lake, table):
        current = _load(path)
        if current is not None:
            write_json(path, {"token": current.token})
    return current


def holder_of(lake: Lake, table: str) -> LeaseRecord | None:
    """The record of a table's lease, whether or not its holder is alive; None if free."""
    return _load(_path(lake, table))


def holders(lake: Lake) -> list[LeaseRecord]:
    """All lease records by table name; the holders need not be alive."""
    folder = lake.side_folder / "leases"
    records = (_load(path) for path in sorted(folder.glob(f"{lake.database}.*.json")))
    return [record for record in records if record is not None]


def _refusal(table: str, current: LeaseRecord, why: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(current.since_ms / 1000))
    how = (
        "cancel the job (`paimon-features cancel`)"
        if isinstance(current.holder, FlinkJobHolder)
        else "stop the process, or wait until it has finished"
    )
    return (
        f"table {table!r} is owned by {current.holder} since {since} UTC to {current.purpose} "
        f"({why}); a table has one committing owner at a time: {how}. If the holder is certainly "
        f"dead: "
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
    """The start time of a process, None if it is not running (or a zombie)."""
    if not os.path.exists("/proc/self/stat"):
        return _process_start_of_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command may contain blanks and parentheses: parse after the last parenthesis
    after = stat[stat.rindex(")") + 2 :].split()
    return None if after[0] in ("Z", "X") else int(after[19])


def _process_start_of_ps(pid: int) -> int | None:
    """The same without /proc, in seconds since 1970."""
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
