"""Leases: each table has one committing owner, a process or a Flink job.

A lease is a sequence of numbered claims (see ``claims``); the newest one is the owner's, or free.
Whether an owner lives is decided by the operating system for processes that this one can see, by
Flink's REST interface for jobs (not by the client that submitted them), and by a heartbeat for
processes of other machines and PID namespaces. The lease of a dead owner is taken over.

An owner that only seemed dead is harmless: each commit of a process checks its number under the
commit lock (``commit_lock``), and raises LeaseLostError once there is a higher one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import DamagedFileError, JobError, OwnershipError
from paimon_features.core.process.flink_rest import ENDED, FlinkRest
from paimon_features.core.process.process_holder import Liveness
from paimon_features.core.process.process_holder import ProcessHolder as ProcessHolder
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import Record
from paimon_features.lake.ownership import claims
from paimon_features.lake.ownership.claims import Claim, Claims, claims_of
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.fence import Fence, held
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.table_folders import lease_folder, lock_path

REST_TIMEOUT_S = 5.0

_PATIENCE = 4
"""If the heartbeat is another process's than the owner, it must be absent for this many times as
long: the owner's commits do not check the lease, so it must have time to end."""

_log = logging.getLogger(__name__)


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

    def liveness(self, near: bool = True) -> Liveness:
        """Return True if it is alive; without a response from the cluster it is.

        ``near`` is whether the holder was recorded on this machine: elsewhere ``localhost`` is
        another cluster.
        """
        client = None if self.client is None else self.client.liveness()[0]
        if client == "alive":
            return "alive", f"{self.client} is submitting it"
        if self.cluster is not None and self.cluster.liveness()[0] == "dead":
            return "dead", "its cluster has ended"
        if not near and _is_loopback(self.rest_url):
            return "unknown", f"{self.rest_url} is the address of another machine's cluster"
        try:
            state = FlinkRest(self.rest_url, REST_TIMEOUT_S).state(self.job_id)
        except JobError as error:
            return "alive", f"its state is unknown ({error}), so it is assumed to be running"
        if state is None and client == "unknown":
            return "unknown", f"its cluster does not know it; {self.client} may be submitting it"
        if state is None:
            return "dead", "its cluster does not know it"
        return "dead" if state in ENDED else "alive", f"it is {state}"

    def alive(self) -> tuple[bool, str]:
        """Return True if it is alive or may be, and the reason."""
        state, why = self.liveness()
        return state != "dead", why

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
    number: int
    """Increases with each owner, to distinguish former ones from the current one."""


class Lease:
    """An acquired lease. As a context manager, it is released at the end of the block.

    Until then the commits of this process to the table check it.
    """

    def __init__(self, lake: Lake, record: LeaseRecord, fence: Fence) -> None:
        self.lake = lake
        self.record = record
        self._fence = fence

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release it; does nothing if it was handed over, taken over or released before."""
        self._forget()
        self._fence.release(_release(self.record.table))

    def transfer(self, holder: Holder) -> Lease:
        """Hand it over to another holder, such as the job that this process submitted.

        Returns the holder's lease, to be released if it ends while this process lives. A process
        gets it as if it had acquired it: this one's JVM does, once its job on a cluster has ended.

        Raises
        ------
        LeaseLostError
            If this lease is no longer valid.
        """
        beat_s = claims.BEAT_S if isinstance(holder, ProcessHolder) else None
        content = _content(replace(self.record, holder=holder), beat_s)
        self._fence.check()
        claim = self._fence.claims.follow(self._fence.claim, content)
        if claim is None:
            self._fence.check()
        assert claim is not None
        self._forget()
        table = self.record.table
        fence = _fence(self._fence.claims, table, claim)
        if beat_s is not None:
            held.add(str(lease_folder(self.lake, table)), fence)
        return Lease(self.lake, replace(self.record, holder=holder, number=claim.number), fence)

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is still valid."""
        self._fence.check()

    def _forget(self) -> None:
        held.remove(str(lease_folder(self.lake, self.record.table)), self._fence.claim)


def acquire(lake: Lake, table: str, holder: Holder | None = None, purpose: str = "write") -> Lease:
    """Acquire the lease of a table; ``holder`` is this process by default.

    The lease of a dead holder is taken over. The same holder may acquire again: its old lease
    ends. A holder that cannot be seen from here is watched until its heartbeat shows that it lives
    (5 s), or sends no heartbeat for 30 s (120 s for the JVM of a job in another process).

    Raises
    ------
    OwnershipError
        If another holder is alive or its state is unknown; the message says what to do.
    RecordLostError
        If the table had a lease, and its record does not exist.
    """
    claimant = ProcessHolder.current() if holder is None else holder
    _record(lake, table).require()
    table_claims = _claims(lake, table)
    record = LeaseRecord(table, claimant, purpose, now_ms(), 0)
    with write_errors(f"the lease of table {table!r} cannot be written"):
        claim = table_claims.take(
            _content(record, beat_s=claims.BEAT_S),
            lambda newest: _may_follow(table_claims, newest, table, claimant),
            lambda: locked(lock_path(lake, table), f"acquiring the lease of table {table!r}"),
        )
    fence = _fence(table_claims, table, claim)
    held.add(str(lease_folder(lake, table)), fence)
    _record(lake, table).mark()
    return Lease(lake, replace(record, number=claim.number), fence)


@contextmanager
def committing(lake: Lake, table: str, what: str) -> Iterator[Callable[[], None]]:
    """Call ``commit_lock``, also for a process that has not acquired the lease.

    Such a process commits while nobody owns the table: neither a job nor maintenance may commit at
    the same time. The lease of a dead owner is ended.

    Raises
    ------
    OwnershipError
        If another process or job owns the table, or has taken it over from this one.
    TableError
        As ``commit_lock``.
    """
    while True:
        number = _unowned(lake, table)
        with commit_lock(lake, table, what) as check:
            if number is None or number == _number(_claims(lake, table).newest()):
                yield check
                return


def check_all(leases: Iterable[Lease]) -> None:
    """Raise LeaseLostError if one of these leases is lost; for who waits for a job of this process.

    A storage that cannot be reached for a moment is no loss.
    """
    for lease in leases:
        with suppress(OSError):
            lease.check()


def release(lake: Lake, table: str) -> LeaseRecord | None:
    """Release a lease by force; return its record, None if it was free.

    For operators who know that the holder is dead: a job of Flink does not notice it, and two
    owners can corrupt a table. A process cannot commit any more.
    """
    table_claims = _claims(lake, table)
    while (newest := table_claims.newest()) is not None:
        try:
            current = _load(table, newest)
        except DamagedFileError as error:
            _log.warning("table %r is released: %s", table, error)
            current = None
        else:
            if current is None:
                return None
        if table_claims.follow(newest, _release(table)) is not None:
            return current
    if not _record(lake, table).exists():
        _record(lake, table).accept_loss()
    return None


def holder_of(lake: Lake, table: str) -> LeaseRecord | None:
    """Return the record of a table's lease, whether or not its holder is alive; None if free."""
    newest = _claims(lake, table).newest()
    return None if newest is None else _load(table, newest)


def holders(lake: Lake) -> list[LeaseRecord]:
    """Return all lease records by table name; the holders need not be alive."""
    folder, prefix = lake.side_folder / "leases", f"{lake.database}."
    names = sorted(path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*"))
    records = (holder_of(lake, table) for table in names)
    return [record for record in records if record is not None]


def state_of(lake: Lake, record: LeaseRecord) -> str:
    """Return in words whether the owner of a lease is alive.

    Waits for up to two heartbeats of an owner that cannot be seen from here.
    """
    table_claims = _claims(lake, record.table)
    claim = _current(table_claims, record)
    state, why = _liveness(record, claim)
    if state == "unknown" and claim is not None and claim.beat_s is not None:
        beating = table_claims.watch(claim, beats=2) == "beating"
        return f"{why}; its heartbeat {'continues' if beating else 'has stopped'}"
    return why


def current_state(lake: Lake, record: LeaseRecord) -> tuple[str, str, int | None]:
    """Return whether the owner of a lease is alive, the reason, and the time of its last heartbeat
    (UTC ms).

    Unlike ``state_of`` it waits for nothing. The time is that of the file system, before the first
    heartbeat that of the claim; None where it is unknown.
    """
    table_claims = _claims(lake, record.table)
    claim = _current(table_claims, record)
    return *_liveness(record, claim), None if claim is None else table_claims.beat_ms(claim)


def _current(own: Claims, record: LeaseRecord) -> Claim | None:
    """Return the claim of a record, None if another one follows."""
    newest = own.newest()
    return newest if newest is not None and newest.number == record.number else None


def _unowned(lake: Lake, table: str) -> int | None:
    """Return the number of the newest claim, once nobody owns the table.

    None if this process does.
    """
    key = str(lease_folder(lake, table))
    while held.fence(key) is None:
        table_claims = _claims(lake, table)
        newest = table_claims.newest()
        if newest is None or _load(table, newest) is None:
            return _number(newest)
        if _may_follow(table_claims, newest, table, ProcessHolder.current()):
            table_claims.follow(newest, _release(table))
    return None


def _number(claim: Claim | None) -> int:
    return 0 if claim is None else claim.number


def _may_follow(own: Claims, newest: Claim, table: str, claimant: Holder) -> bool:
    """Return True if the owner of a claim is dead.

    False to look again. OwnershipError if it lives.
    """
    current = _load(table, newest)
    if current is None or current.holder == claimant:
        return True
    state, why = _liveness(current, newest)
    if state == "dead":
        return True
    if state == "alive" or newest.beat_s is None:
        raise OwnershipError(_refusal(table, current, why))
    fenced = current.holder == _writer(newest)
    beats = claims.SILENT_BEATS * (1 if fenced else _PATIENCE)
    _log.info(
        "table %r is owned by %s (%s); its heartbeat is watched for up to %g s",
        table, current.holder, why, beats * newest.beat_s,
    )  # fmt: skip
    seen = own.watch(newest, beats)
    if seen == "beating":
        raise OwnershipError(_refusal(table, current, f"{why}; its heartbeat continues"))
    if seen == "silent":
        _log.warning(
            "table %r: no heartbeat from %s; its lease is taken over", table, current.holder
        )
    return seen == "silent"


def _liveness(record: LeaseRecord, claim: Claim | None) -> Liveness:
    if isinstance(record.holder, ProcessHolder):
        return record.holder.liveness()
    writer = None if claim is None else _writer(claim)
    return record.holder.liveness(near=writer is None or writer.is_near())


def _refusal(table: str, current: LeaseRecord, why: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(current.since_ms / 1000))
    how = (
        "cancel the job (`paimon-features submit VIEW --stop`)"
        if isinstance(current.holder, FlinkJobHolder)
        else "stop the process, or wait until it has finished"
    )
    return (
        f"table {table!r} is owned by {current.holder} since {since} UTC to {current.purpose} "
        f"({why}); a table has one committing owner at a time: {how}. If the holder is certainly "
        f"dead: "
        f"`paimon-features jobs --release {table}`"
    )


def _fence(own: Claims, table: str, claim: Claim) -> Fence:
    def describe(other: Claim) -> str:
        try:
            record = _load(table, other)
        except DamagedFileError:
            return "an unknown owner (its file is damaged)"
        return "no one (it was released)" if record is None else str(record.holder)

    return Fence(f"table {table!r}: the lease", own, claim, describe)


def _claims(lake: Lake, table: str) -> Claims:
    return claims_of(lease_folder(lake, table))


def _record(lake: Lake, table: str) -> Record:
    return Record(lake, "leases", lease_folder(lake, table).name, table, table)


def _content(record: LeaseRecord, beat_s: float | None) -> dict[str, Any]:
    kind = "flink_job" if isinstance(record.holder, FlinkJobHolder) else "process"
    fields = {key: value for key, value in asdict(record).items() if key != "number"}
    return {**fields, "kind": kind, "writer": asdict(ProcessHolder.current()), "beat_s": beat_s}


def _release(table: str) -> Mapping[str, Any]:
    return {**claims.RELEASED, "table": table}


def _load(table: str, claim: Claim) -> LeaseRecord | None:
    """Return the owner by a claim, None if it is a release; DamagedFileError if it is neither."""
    if claim.is_release:
        return None
    raw = claim.content
    try:
        holder: Holder
        if raw["kind"] == "process":
            holder = typed(ProcessHolder, raw["holder"])
        elif raw["kind"] == "flink_job":
            holder = typed(FlinkJobHolder, raw["holder"])
        else:
            raise ValueError(f"kind={str(raw['kind'])[:40]!r}")
        purpose, since_ms = raw["purpose"], raw["since_ms"]
        if type(purpose) is not str or type(since_ms) is not int:
            raise ValueError("purpose and since_ms are not a text and a time")
    except KeyError as error:
        raise claim.damaged(f"it has no field {error}") from None
    except ValueError as error:
        raise claim.damaged(str(error)) from None
    return LeaseRecord(table, holder, purpose, since_ms, claim.number)


def _writer(claim: Claim) -> ProcessHolder | None:
    """Return the process that created a claim and beats for it."""
    raw: Mapping[str, Any] | None = claim.content.get("writer")
    try:
        return None if raw is None else typed(ProcessHolder, raw)
    except ValueError as error:
        raise claim.damaged(f"writer: {error}") from None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
