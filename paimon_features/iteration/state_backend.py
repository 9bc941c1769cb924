"""State of a subtask: the backend provided by an engine, and a write-behind cache."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from typing import Any, Protocol

from paimon_features.iteration.envelope import dumps

Key = tuple[Any, ...]
"""Key of a state entry. The first component names its family, see :class:`StateBackend`."""


def encode_key(key: Key) -> bytes:
    """Encode a key; equal keys have equal bytes (pickles of equal tuples may differ).

    >>> decode_key(encode_key(("round", 3, 0, "k", "user", "v", "count")))
    ('round', 3, 0, 'k', 'user', 'v', 'count')
    """
    return repr(key).encode("utf-8", "surrogatepass")


def decode_key(data: bytes) -> Key:
    """Decode a key."""
    text = data.decode("utf-8", "surrogatepass")
    key: Key = eval(text, {"__builtins__": {}, "inf": math.inf})  # written by `encode_key`
    return key


class StateBackend(Protocol):
    """State of one subtask of one stage; the engine takes its snapshots and restores it.

    Keys are tuples whose first component is the family, one of ``"control"``, ``"entry"``
    (unacknowledged feedback), ``"replay"``, ``"all"`` (state of all-round functions), ``"round"``
    (state of per-round functions); the rest are strings, numbers and canonical user keys, which
    ``encode_key`` encodes. Values are any picklable objects. ``scan`` is called once per family
    when a runner opens, for ``"entry"`` and ``"round"`` only.
    """

    def get(self, key: Key) -> Any:
        """Return the value, or ``None``."""
        ...

    def put(self, key: Key, value: Any) -> None: ...

    def delete(self, key: Key) -> None: ...

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        """Yield all entries of a family, in any order."""
        ...


class MemoryState:
    """A backend in a dictionary; values are stored as bytes, so that no object is shared.

    Examples
    --------
    >>> state = MemoryState()
    >>> state.put(("all", 1), [1, 2])
    >>> state.get(("all", 1)), state.get(("all", 2))
    ([1, 2], None)
    """

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self._entries: dict[bytes, bytes] = {} if entries is None else dict(entries)

    def get(self, key: Key) -> Any:
        data = self._entries.get(encode_key(key))
        return None if data is None else pickle.loads(data)

    def put(self, key: Key, value: Any) -> None:
        self._entries[encode_key(key)] = dumps(value)

    def delete(self, key: Key) -> None:
        self._entries.pop(encode_key(key), None)

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        start = encode_key((family,)).rstrip(b")")
        for encoded, data in list(self._entries.items()):
            if encoded.startswith(start):
                yield decode_key(encoded), pickle.loads(data)

    def snapshot(self) -> dict[bytes, bytes]:
        """Return all entries, for ``MemoryState(snapshot)``."""
        return dict(self._entries)


class StateCache:
    """Read-through cache with writes at ``flush``; runners access their backend only through it.

    Values that were not used since the cache was last full are evicted and read again on demand,
    so that a large keyed state does not stay in Python's memory: at most ``2 * limit`` values that
    are unchanged since the last flush are cached.
    """

    def __init__(self, backend: StateBackend, limit: int = 100_000) -> None:
        self._backend = backend
        self._limit = limit
        self._values: dict[Key, Any] = {}
        self._older: dict[Key, Any] = {}
        self._changed: dict[Key, None] = {}
        self._memos: dict[Key, Any] = {}
        self._older_memos: dict[Key, Any] = {}
        # keys of per-round state by (node, epoch), to delete them when the epoch closes
        self._rounds: dict[tuple[int, int], set[Key]] = {}
        for key, value in backend.scan("round"):
            self._values[key] = value
            self._of_round(key).add(key)

    def get(self, key: Key) -> Any:
        """Return the value or ``None``; the same object until it is replaced or evicted."""
        try:
            return self._values[key]
        except KeyError:
            pass
        value = self._older.pop(key) if key in self._older else self._backend.get(key)
        self._values[key] = value
        return value

    def read(self, key: Key) -> Any:
        """Return the value or ``None`` without caching it; for large values."""
        return self._values[key] if key in self._changed else self._backend.get(key)

    def put(self, key: Key, value: Any) -> None:
        """Set a value other than ``None``."""
        self._values[key] = value
        self._changed[key] = None
        if key[0] == "round":
            self._of_round(key).add(key)

    def delete(self, key: Key) -> None:
        """Delete the value."""
        self._values[key] = None
        # a flush evicts the key: its earlier value must not reappear
        self._older.pop(key, None)
        self._changed[key] = None

    def memo(self, key: Key) -> Any:
        """Return the memo of the state under ``key``, or ``None`` if it was evicted."""
        memo = self._memos.get(key)
        if memo is None and (memo := self._older_memos.pop(key, None)) is not None:
            self._memos[key] = memo
        return memo

    def memoize(self, key: Key, value: Any) -> None:
        """Cache a value that can be derived again from the state under ``key``."""
        self._memos[key] = value
        if key[0] == "round":
            self._of_round(key).add(key)

    def drop_round(self, node: int, epoch: int) -> None:
        """Delete all state of a node's instance of one epoch."""
        for key in self._rounds.pop((node, epoch), ()):
            self.delete(key)
            self._older.pop(key, None)
            self._memos.pop(key, None)
            self._older_memos.pop(key, None)

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        """Yield all entries of a family in the backend; only before the first ``put``."""
        return self._backend.scan(family)

    def flush(self) -> None:
        """Write all changes since the last flush."""
        values, backend = self._values, self._backend
        for key in self._changed:
            value = values[key]
            if value is None:
                del values[key]
                backend.delete(key)
            else:
                backend.put(key, value)
                if key[0] == "replay" or key[0] == "entry":
                    # their owners cache them
                    del values[key]
        self._changed.clear()
        if len(values) > self._limit or len(self._memos) > self._limit:
            self._older, self._values = values, {}
            self._older_memos, self._memos = self._memos, {}

    def _of_round(self, key: Key) -> set[Key]:
        return self._rounds.setdefault((key[1], key[2]), set())
