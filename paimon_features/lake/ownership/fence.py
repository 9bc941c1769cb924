"""Fences: each commit of a process checks that its lease is still the newest one.

The check decides, not the heartbeat: a heartbeat that stops too early costs its owner the lease,
never a table its rows.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paimon_features.core.errors import LeaseLostError, TableError
from paimon_features.lake.ownership.claims import Claim, Claims

_log = logging.getLogger(__name__)


class Fence:
    """What a change has to check: that the claim which this process created is still the newest.

    ``name`` says what it protects ("table 't': the lease"). ``describe`` returns the owner of a
    claim in words.
    """

    def __init__(
        self, name: str, claims: Claims, claim: Claim, describe: Callable[[Claim], str]
    ) -> None:
        self.name, self.claims, self.claim = name, claims, claim
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

    def release(self, content: Mapping[str, Any]) -> None:
        """Create the claim that releases it; do nothing if it was lost."""
        try:
            self.check()
        except LeaseLostError:
            return
        self.claims.follow(self.claim, content)

    def _lost(self) -> str:
        return (
            f"{self.name} with number {self.claim.number} is no longer held by "
            f"{self._describe(self.claim)}, so nothing more is committed with it"
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
            self._schedule(_Heartbeat(fence, fence.claim.beat_s))

    def remove(self, key: str, claim: Claim) -> None:
        """Forget a lease that was released or handed over; harmless to repeat."""
        with self._lock:
            self._beats.pop(claim.nonce, None)
            left = [f for f in self._fences.pop(key, ()) if f.claim.nonce != claim.nonce]
            if left:
                self._fences[key] = left

    def release_later(self, fence: Fence, content: Mapping[str, Any]) -> None:
        """Release a lease once its storage is reachable, in place of the next heartbeats."""
        self._schedule(_Heartbeat(fence, fence.claim.beat_s or 1.0, content))

    def fence(self, key: str) -> Fence | None:
        """Return what a commit has to check; None where this process has acquired no lease.

        A lease stays until it is removed, also one that was lost.
        """
        with self._lock:
            fences = self._fences.get(key)
            return fences[-1] if fences else None

    def _schedule(self, beat: _Heartbeat) -> None:
        with self._lock:
            self._beats[beat.fence.claim.nonce] = beat
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._work, name="lease-heartbeat", daemon=True
                )
                self._thread.start()
            self._changed.set()

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
    """The heartbeat of one lease; with ``ending``, the attempts to release it by that content."""

    def __init__(
        self, fence: Fence, every_s: float, ending: Mapping[str, Any] | None = None
    ) -> None:
        self.fence, self.every_s, self.count, self.ending = fence, every_s, 0, ending
        self.due_s = time.monotonic() + every_s

    def once(self) -> bool:
        """Beat; return False if that was the last time."""
        self.count += 1
        self.due_s = time.monotonic() + self.every_s
        try:
            if self.ending is not None:
                self.fence.release(self.ending)
                return False
            self.fence.check()
            self.fence.claims.beat(self.fence.claim, self.count)
        except LeaseLostError as error:
            _log.warning("%s", error)
            return False
        except (OSError, TableError, ValueError) as error:
            _log.warning("%s: no heartbeat: %s", self.fence.name, error)
        return True


held = HeldLeases()
"""The leases of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=held.renew)
