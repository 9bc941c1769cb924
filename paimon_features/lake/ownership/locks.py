"""Locks: short leases, for one change of a table or record.

On a file system a lock is a lock of the operating system, which is free when its holder dies. An
object store has none: there a lock is a lease that is waited for. Its holder may lose it while it
is paused, so it checks immediately before a change, and what it changes is changed by a
conditional put as well.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import DamagedFileError, StoreUnreachableError, TableError
from paimon_features.core.process.process_holder import ProcessHolder
from paimon_features.lake.ownership import claims
from paimon_features.lake.ownership.claims import RELEASED, Claim, ObjectClaims
from paimon_features.lake.ownership.fence import Fence, held
from paimon_features.lake.storage.object_path import ObjectPath, SidePath
from paimon_features.lake.storage.write_errors import write_errors

LOCK_TIMEOUT_S = 60.0
_POLL_S = (0.02, 0.5)
"""The first and the longest wait between two attempts."""
_LOOKS_PER_BEAT = 10

_log = logging.getLogger(__name__)
_nonces: set[str] = set()
"""The locks in object stores that threads of this process hold."""


@contextmanager
def locked(
    path: SidePath, what: str, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[Callable[[], None]]:
    """Hold a lock inside the ``with`` block, exclusively among processes and threads.

    Yields a function that raises LeaseLostError if the lock was taken over, which only one of an
    object store can be. Call it immediately before a change. Not reentrant.

    Raises
    ------
    TableError
        If another one holds it for longer than ``timeout_s``, or, where it cannot be seen whether
        the holder lives, for longer than its heartbeat is watched.
    """
    if isinstance(path, ObjectPath):
        lock = _ObjectLock(path, what)
        lock.acquire(timeout_s)
        try:
            yield lock.fence.check
        finally:
            lock.release()
    else:
        with _file_lock(path, what, timeout_s):
            yield lambda: None


@contextmanager
def _file_lock(path: Path, what: str, timeout_s: float) -> Iterator[None]:
    """Lock a file among the processes and threads of the hosts that share its file system.

    The operating system releases it when its holder dies, also by ``kill -9``.
    """
    lock = FileLock(path, timeout=timeout_s)
    try:
        with write_errors(f"{what}: {path} cannot be locked"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=0.005)
    except Timeout:
        raise _timeout(what, "another process", path, timeout_s) from None
    try:
        yield
    finally:
        lock.release()


class _ObjectLock:
    """One acquisition of a lock in an object store."""

    fence: Fence

    def __init__(self, path: ObjectPath, what: str) -> None:
        self._path, self._what = path, what
        self._claims = ObjectClaims(path)

    def acquire(self, timeout_s: float) -> None:
        """Wait until it is free, or its holder has ended."""
        since, wait_s = time.monotonic(), _POLL_S[0]
        while True:
            newest = self._claims.newest()
            holder = self._holder(newest)
            if (holder is None or self._may_follow(newest, holder)) and self._follow(newest):
                return
            if time.monotonic() - since > timeout_s:
                raise _timeout(self._what, holder or "another process", self._path, timeout_s)
            time.sleep(wait_s * (0.5 + random.random() / 2))
            wait_s = min(2 * wait_s, _POLL_S[1])

    def release(self) -> None:
        """Free it. If the store does not reply, that is repeated by the thread that beats."""
        held.remove(str(self._path), self.fence.claim)
        _nonces.discard(self.fence.claim.nonce)
        try:
            self.fence.release(RELEASED)
        except (StoreUnreachableError, OSError) as error:
            _log.warning("%s: the lock %s is released later: %s", self._what, self._path, error)
            held.release_later(self.fence, RELEASED)

    def _follow(self, newest: Claim | None) -> bool:
        nonce = secrets.token_hex(8)
        content = {
            "nonce": nonce,
            "holder": asdict(ProcessHolder.current()),
            "purpose": self._what,
            "beat_s": claims.BEAT_S,
        }
        _nonces.add(nonce)  # before another thread of this process can see it
        claim = None
        try:
            claim = self._claims.follow(newest, content)
        finally:
            if claim is None:
                _nonces.discard(nonce)
        if claim is None:
            return False
        name = f"{self._what}: the lock {self._path}"
        self.fence = Fence(name, self._claims, claim, self._describe)
        held.add(str(self._path), self.fence)
        return True

    def _may_follow(self, newest: Claim | None, holder: ProcessHolder) -> bool:
        assert newest is not None
        if holder == ProcessHolder.current():
            # of a thread of this process, or of one whose release was not acknowledged
            return newest.nonce not in _nonces
        state, _ = holder.liveness()
        if state != "unknown":
            return state == "dead"
        seen = self._claims.watch(newest, claims.SILENT_BEATS, looks_per_beat=_LOOKS_PER_BEAT)
        return seen == "silent"

    def _holder(self, claim: Claim | None) -> ProcessHolder | None:
        try:
            if claim is None or claim.is_release:
                return None
            if claim.beat_s is None:
                raise ValueError("it has no beat_s")
            return typed(ProcessHolder, claim.content["holder"])
        except (DamagedFileError, ValueError) as error:
            raise DamagedFileError(
                f"{self._what}: the lock {self._path} is damaged ({error}); if no process or job "
                "writes to the warehouse, delete it"
            ) from None

    def _describe(self, claim: Claim) -> str:
        holder = self._holder(claim)
        return "no one (it was released)" if holder is None else str(holder)


def _timeout(what: str, holder: object, path: SidePath, timeout_s: float) -> TableError:
    return TableError(
        f"{what}: {holder} has held {path} for more than {timeout_s:g} s; stop it, or wait until "
        "it has finished"
    )
