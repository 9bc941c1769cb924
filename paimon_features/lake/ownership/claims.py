"""Claims: the numbered entries of a lease, each created exclusively; the newest one decides.

::

    claim-41   released
    claim-42   process 117 on a, to ingest        paused for a minute
    beat-42    5                                  not increased meanwhile
    claim-43   process 260 on b, to ingest        took over: 42 cannot commit any more
    oldest     40                                 claims below were deleted

Taking over, releasing and handing over all create the next number, so that two of them cannot
follow the same claim. An owner increases its heartbeat's counter; who wants to take over watches
the counter by its own clock, and no two clocks are compared. A commit checks that no claim follows
its own (``Fence``). That check decides, not the heartbeat: a heartbeat that stops too early costs
its owner the lease, never a table its rows.

A claim is an owner's, or says that it was released. One whose content is neither is damaged: it may
be a living owner's, so nothing follows it until somebody who knows better releases the lease.

A number that was used stays used: claims are deleted in ascending order, after ``oldest`` says so,
and a claim below ``oldest`` is none.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import DamagedFileError, LeaseLostError, TableError
from paimon_features.lake.storage.exclusive import ExclusiveFiles

BEAT_S = 5.0
"""Seconds between two heartbeats."""
SILENT_BEATS = 6
"""An owner whose heartbeat does not change for this number of intervals may be replaced."""

_KEPT = 4
"""The newest claims, which are not deleted."""
_LOOKS_PER_BEAT = 5
_ATTEMPTS = 10

RELEASED: Mapping[str, Any] = {"released": True}
"""The content of a claim that releases a lease."""
_CRC = "crc32"
_OLD_RELEASE = frozenset(("table", "token", "nonce"))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """One entry of a lease. Its ``nonce`` is random: a number may be used again after a loss.

    ``damage`` says what is wrong with its file, None if nothing is.
    """

    number: int
    content: Mapping[str, Any]
    damage: str | None = None

    @property
    def nonce(self) -> str:
        self.check()
        return str(self.content["nonce"])

    @property
    def is_release(self) -> bool:
        """Whether it says that nobody owns the table.

        Raises
        ------
        DamagedFileError
            If the record does not say so either way.
        """
        self.check()
        if "holder" in self.content:
            return False
        # before releases were marked, they had these fields only
        if self.content.get("released") is True or self.content.keys() <= _OLD_RELEASE:
            return True
        raise self.damaged("it has neither an owner nor a mark that it was released")

    def check(self) -> None:
        """Raise DamagedFileError if its file is damaged."""
        if self.damage is not None:
            raise self.damaged(self.damage)

    def damaged(self, why: str) -> DamagedFileError:
        """The error for content that is not what was written."""
        return DamagedFileError(
            f"claim {self.number} of a lease is damaged ({why}), and may be that of a living "
            "owner. Restore it from a copy; or, if no process or job writes the table, run "
            "'paimon-features jobs --release TABLE'"
        )

    @property
    def beat_s(self) -> float | None:
        """Seconds between the heartbeats of its owner; None if it has none."""
        beat_s = self.content.get("beat_s")
        if beat_s is not None and not (type(beat_s) in (int, float) and 0 < beat_s < 3_600):
            raise self.damaged(f"beat_s={str(beat_s)[:40]!r}")
        return beat_s


class Claims:
    """The claims of one lease.

    ``inherited`` is the claim of an older format, which the first one follows.
    """

    def __init__(self, files: ExclusiveFiles, inherited: Claim | None = None) -> None:
        self.files = files
        self._inherited = inherited

    def newest(self) -> Claim | None:
        """The newest claim, None before the first one.

        Raises
        ------
        TableError
            If claims are missing.
        """
        for _ in range(_ATTEMPTS):
            number = self._first() - 1
            found = None
            while (claim := self.read(number + 1)) is not None:
                number, found = number + 1, claim
            if found is not None:
                return found
            if self._oldest() is None:
                return self._inherited
        raise TableError(
            f"a lease has no claim from number {self._first()} on: its folder was changed by hand, "
            "or restored in part; restore it completely, or delete it"
        )

    def read(self, number: int) -> Claim | None:
        """The claim of a number, with what is wrong with it; None if it does not exist."""
        text = self.files.read(claim_file(number))
        if text is None:
            return None
        where = self.files.where(claim_file(number))
        try:
            content = mapping(json.loads(text), "nonce")
        except (ValueError, RecursionError) as error:
            return Claim(number, {}, f"{where}: {str(error)[:200]}")
        if type(content["nonce"]) is not str:
            return Claim(number, {}, f"{where}: the nonce is {str(content['nonce'])[:40]!r}")
        stated = {key: value for key, value in content.items() if key != _CRC}
        # claims of earlier versions have none
        if content.get(_CRC, crc := _crc(stated)) != crc:
            return Claim(number, {}, f"{where}: it does not match its CRC32")
        return Claim(number, stated)

    def follow(self, previous: Claim | None, content: Mapping[str, Any]) -> Claim | None:
        """Create the claim after ``previous``; None if another one was faster."""
        number = self._first() if previous is None else previous.number + 1
        made = Claim(number, {**content, "nonce": secrets.token_hex(8)})
        # a flipped bit in a process id would make its owner a dead one
        text = _text({**made.content, _CRC: _crc(made.content)})
        if not self.files.create(claim_file(number), text):
            return None
        if number < (self._oldest() or 0):  # it was used and deleted, before this process looked
            self.files.delete(claim_file(number))
            return None
        return made

    def prune(self, newest: Claim) -> None:
        """Delete old claims. The caller holds the lock under which claims are made."""
        first = self._first()
        keep = newest.number - _KEPT + 1
        if keep > first:
            self.files.replace("oldest", str(keep))
            for number in range(first, keep):
                self.files.delete(claim_file(number))
                self.files.delete(beat_file(number))

    def follower(self, claim: Claim) -> Claim | None:
        """The newest claim if it follows this one, None while ``claim`` is the newest one.

        Raises
        ------
        LeaseLostError
            If the claim does not exist any more.
        """
        if self.read(claim.number + 1) is not None:
            return self.newest()
        # in this order: a claim that followed and was deleted was deleted after this one
        own = self.read(claim.number)
        if own is None or own.nonce != claim.nonce:
            newest = self.newest()
            if newest is None or newest.number <= claim.number:
                raise LeaseLostError(f"claim {claim.number} does not exist any more")
            return newest
        return None

    def beat(self, claim: Claim, count: int) -> None:
        """Publish the owner's heartbeat."""
        self.files.replace(beat_file(claim.number), f"{claim.nonce} {count}")

    def watch(
        self,
        claim: Claim,
        beats: float = SILENT_BEATS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Literal["beating", "silent", "followed"]:
        """Watch a heartbeat until it changes, at most for a number of intervals.

        Both a clock that jumps and a process that is paused have to look several times.
        """
        assert claim.beat_s is not None
        known = self.files.read(beat_file(claim.number))
        since, looks = clock(), 0
        while looks < beats * _LOOKS_PER_BEAT or clock() - since < beats * claim.beat_s:
            sleep(claim.beat_s / _LOOKS_PER_BEAT)
            looks += 1
            if self.files.read(claim_file(claim.number + 1)) is not None:
                return "followed"
            if self.files.read(beat_file(claim.number)) != known:
                return "beating"
        return "silent"

    def take(
        self,
        content: Mapping[str, Any],
        may_follow: Callable[[Claim], bool],
        lock: Callable[[], AbstractContextManager[Any]],
    ) -> Claim:
        """Create the claim after the newest one, once it may be followed.

        ``may_follow`` returns False to look again, and raises if its owner lives. Claims are made
        under the lock of the table's commits, so that none follows between a commit's check and
        its snapshot.
        """
        while True:
            newest = self.newest()
            if newest is not None and not may_follow(newest):
                continue
            with lock():
                made = self.follow(newest, content)
                if made is not None:
                    self.prune(made)
                    return made

    def _oldest(self) -> int | None:
        text = self.files.read("oldest")
        if text is None:
            return None
        if not (text.isascii() and text.strip().isdigit() and len(text) <= 20):
            raise DamagedFileError(
                f"{self.files.where('oldest')} is damaged ({text[:40]!r}, expected a number); "
                "restore it from a copy, or write the smallest number of the files claim-* next to "
                "it into it"
            )
        return int(text)

    def _first(self) -> int:
        """The number from which on claims exist, or will."""
        inherited = 0 if self._inherited is None else self._inherited.number
        return self._oldest() or inherited + 1


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, indent=1)


def _crc(content: Mapping[str, Any]) -> int:
    return zlib.crc32(_text(content).encode())


def claim_file(number: int) -> str:
    """The file that contains a claim."""
    return f"claim-{number}"


def beat_file(number: int) -> str:
    """The file that contains the heartbeat of a claim."""
    return f"beat-{number}"


class Fence:
    """What a commit has to check: that the lease which this process acquired is still the newest.

    ``describe`` returns the owner of a claim in words.
    """

    def __init__(
        self, table: str, claims: Claims, claim: Claim, describe: Callable[[Claim], str]
    ) -> None:
        self.table, self.claims, self.claim = table, claims, claim
        self._describe = describe

    def check(self) -> None:
        """Raise LeaseLostError if another claim follows."""
        try:
            follower = self.claims.follower(self.claim)
        except LeaseLostError as error:
            raise LeaseLostError(f"{self._lost()}: {error}") from None
        if follower is not None:
            raise LeaseLostError(
                f"{self._lost()}: number {follower.number} belongs to {self._describe(follower)}"
            )

    def _lost(self) -> str:
        return (
            f"table {self.table!r}: the lease with number {self.claim.number} is no longer held "
            f"by {self._describe(self.claim)}, so nothing more is committed with it"
        )


class HeldLeases:
    """The leases that this process holds, by folder; a daemon thread beats for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fences: dict[str, list[Fence]] = {}
        self._beats: dict[str, _Heartbeat] = {}
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def renew(self) -> None:
        """In a forked child, which commits for its parent but does not beat for it: forget the
        heartbeats, and locks that another thread may have held."""
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._beats, self._thread = {}, None

    def add(self, key: str, fence: Fence) -> None:
        """Beat for a lease until it is removed, and check it in commits."""
        with self._lock:
            self._fences.setdefault(key, []).append(fence)
            if fence.claim.beat_s is not None:
                self._beats[fence.claim.nonce] = _Heartbeat(fence, fence.claim.beat_s)
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(
                        target=self._work, name="lease-heartbeat", daemon=True
                    )
                    self._thread.start()
            self._changed.set()

    def remove(self, key: str, claim: Claim) -> None:
        """Forget a lease that was released or handed over; harmless to repeat."""
        with self._lock:
            self._beats.pop(claim.nonce, None)
            left = [f for f in self._fences.pop(key, ()) if f.claim.nonce != claim.nonce]
            if left:
                self._fences[key] = left

    def fence(self, key: str) -> Fence | None:
        """What a commit has to check; None where this process has acquired no lease.

        A lease stays until it is removed, also one that was lost.
        """
        with self._lock:
            fences = self._fences.get(key)
            return fences[-1] if fences else None

    def _work(self) -> None:
        while True:
            self._changed.clear()
            with self._lock:
                beats = list(self._beats.values())
            next_s = min((beat.due_s for beat in beats), default=None)
            if next_s is None or next_s > time.monotonic():
                self._changed.wait(None if next_s is None else next_s - time.monotonic())
                continue
            for beat in beats:
                if beat.due_s <= time.monotonic() and not beat.once():
                    with self._lock:
                        self._beats.pop(beat.fence.claim.nonce, None)


class _Heartbeat:
    """The heartbeat of one lease."""

    def __init__(self, fence: Fence, every_s: float) -> None:
        self.fence, self.every_s, self.count = fence, every_s, 0
        self.due_s = time.monotonic() + every_s

    def once(self) -> bool:
        """Beat; False if the lease was lost."""
        self.count += 1
        self.due_s = time.monotonic() + self.every_s
        try:
            self.fence.check()
            self.fence.claims.beat(self.fence.claim, self.count)
        except LeaseLostError as error:
            _log.warning("%s", error)
            return False
        except (OSError, TableError, ValueError) as error:
            _log.warning("table %r: no heartbeat: %s", self.fence.table, error)
        return True


held = HeldLeases()
"""The leases of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=held.renew)
