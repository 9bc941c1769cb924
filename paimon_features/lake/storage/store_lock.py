"""A lock in an object store: one object, which only conditional puts change.

The object names its holder, and contains a heartbeat. A lock whose holder has ended is taken over
at once where the operating system knows that, otherwise once its heartbeat has been silent for 30 s
by the clock of the one who waits. So a lock is not proof: a holder that was paused may have lost
it, and calls ``check`` before it changes anything, and what it changes is changed by a conditional
put as well.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
import time
from dataclasses import asdict
from typing import Any

from paimon_features.core.errors import LeaseLostError, StoreUnreachableError, TableError
from paimon_features.core.process.process_holder import ProcessHolder
from paimon_features.lake.storage.conditional import ConditionalStore, StoredObject
from paimon_features.lake.storage.object_path import ObjectPath

BEAT_S = 5.0
"""Seconds between two heartbeats of a holder."""
SILENT_BEATS = 6
"""A holder whose heartbeat does not change for so many intervals loses the lock."""
_POLL_S = (0.02, 0.5)
"""The first and the longest wait between two attempts."""

_log = logging.getLogger(__name__)
_held: set[str] = set()
"""The nonces of the locks that this process holds."""


class StoreLock:
    """One acquisition of a lock; ``acquire``, then ``release``. Not reentrant."""

    def __init__(self, path: ObjectPath, what: str) -> None:
        self.path, self.what = path, what
        self.nonce = secrets.token_hex(8)
        self._beats = 0
        self._version: Any = None
        self._changing = threading.Lock()
        self._ended = threading.Event()

    def acquire(self, timeout_s: float) -> None:
        """Wait until it is free.

        Raises
        ------
        TableError
            If another one holds it for longer than ``timeout_s``, or, where it cannot be seen
            whether the holder lives, for longer than its heartbeat is watched.
        """
        watch = _Watch(timeout_s)
        wait_s = _POLL_S[0]
        while True:
            found = self._store.get(self.path.key)
            if (found is None or watch.may_take(found)) and self._take(found):
                break
            if watch.expired():
                raise TableError(
                    f"{self.what}: {watch.holder} has held {self.path} for more than "
                    f"{timeout_s:g} s; stop it, or wait until it has finished"
                )
            time.sleep(wait_s * (0.5 + random.random() / 2))
            wait_s = min(2 * wait_s, _POLL_S[1])
        threading.Thread(target=self._beat, name="store-lock", daemon=True).start()

    def check(self) -> None:
        """Raise LeaseLostError if another one has taken it over."""
        found = self._store.get(self.path.key)
        if found is None or json.loads(found.text)["nonce"] != self.nonce:
            raise LeaseLostError(
                f"{self.what}: the lock {self.path} was taken over, because this process was "
                "paused or could not reach the store; nothing is changed without it"
            )

    def release(self) -> None:
        """Free it. If the store does not reply, that is repeated by a thread."""
        self._ended.set()
        _held.discard(self.nonce)
        try:
            self._release()
        except (StoreUnreachableError, OSError) as error:
            _log.warning("%s: the lock %s is released later: %s", self.what, self.path, error)
            threading.Thread(target=self._release_later, name="store-lock", daemon=True).start()

    @property
    def _store(self) -> ConditionalStore:
        return self.path.store

    def _take(self, found: StoredObject | None) -> bool:
        text = self._content()
        taken = False
        _held.add(self.nonce)  # before another thread of this process can see it
        try:
            if found is None:
                taken = self.path.create_text(text)
            else:
                taken = self._store.replace_if(self.path.key, text, found.version)
        finally:
            if not taken:
                _held.discard(self.nonce)
        return taken

    def _content(self) -> str:
        holder = asdict(ProcessHolder.current())
        content = {"nonce": self.nonce, "beat": self._beats, "holder": holder, "what": self.what}
        return json.dumps(content, sort_keys=True)

    def _replace(self, text: str) -> bool:
        """Replace the own content; False if it was taken over."""
        found = self._store.get(self.path.key)
        if found is None or json.loads(found.text)["nonce"] != self.nonce:
            return False
        return self._store.replace_if(self.path.key, text, found.version)

    def _release(self) -> None:
        with self._changing:
            self._replace(json.dumps({"nonce": self.nonce, "beat": self._beats}))

    def _release_later(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                self._release()
                return
            except (StoreUnreachableError, OSError):
                continue

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                with self._changing:
                    if self._ended.is_set():
                        return
                    self._beats += 1
                    if not self._replace(self._content()):
                        _log.warning("%s: the lock %s was taken over", self.what, self.path)
                        return
            except (StoreUnreachableError, OSError) as error:
                _log.warning("%s: no heartbeat of %s: %s", self.what, self.path, error)


class _Watch:
    """What one who waits for a lock has seen of its holder."""

    def __init__(self, timeout_s: float) -> None:
        self.holder = "another process"
        self._since = self._seen_since = time.monotonic()
        self._timeout_s = timeout_s
        self._seen = ""
        self._unknown_since: float | None = None

    def may_take(self, found: StoredObject) -> bool:
        """Whether the lock is free, or its holder has ended."""
        content = json.loads(found.text)
        if found.text != self._seen:
            self._seen, self._seen_since = found.text, time.monotonic()
        unknown_since, self._unknown_since = self._unknown_since, None
        if content.get("holder") is None:
            return True
        holder = ProcessHolder(**content["holder"])
        self.holder = str(holder)
        if holder == ProcessHolder.current():
            # of a thread of this process, or of one whose release was not acknowledged
            return content["nonce"] not in _held
        state, _ = holder.liveness()
        if state == "unknown":
            self._unknown_since = unknown_since or self._seen_since
            return time.monotonic() - self._seen_since >= SILENT_BEATS * BEAT_S
        return state == "dead"

    def expired(self) -> bool:
        """Whether to stop waiting. A silent heartbeat is waited for in any case."""
        now = time.monotonic()
        if self._unknown_since is not None and (
            # a heartbeat that changes, or not, is seen after one interval
            now - self._seen_since > 2 * BEAT_S or now - self._unknown_since <= 2.5 * BEAT_S
        ):
            return False
        return now - self._since > self._timeout_s
