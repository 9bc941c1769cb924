"""A queue between hosts with many producers and one consumer, and notes from that consumer.

It may lose messages (a server that restarts without persistence) and duplicate them (an append
whose reply was lost). A producer therefore keeps a message until a note acknowledges it; see
``trainer_bridge.feedback.feedback_drain``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

BEGINNING = b"0-0"
"""The id that precedes every message."""


class Queue(Protocol):
    """Messages in append order. Thread safe."""

    def append(self, messages: Sequence[bytes]) -> list[bytes]:
        """Append messages in order and return their ids."""

    def contains(self, message_id: bytes) -> bool:
        """Return True if a message is present: neither deleted nor lost."""

    def read(self, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``most`` messages after an id, oldest first, as (id, message)."""

    def delete(self, message_ids: Sequence[bytes]) -> None:
        """Remove messages; ids that do not exist are ignored."""

    def note(self, notes: Mapping[str, int]) -> None:
        """Set notes; other notes are unchanged."""

    def noted(self, name: str) -> int | None:
        """Return the value of a note, None if it is not set."""

    def forget_notes(self) -> None:
        """Remove all notes."""

    def close(self) -> None:
        """Close the connections."""


class MemoryQueue:
    """A queue in this process.

    >>> queue = MemoryQueue()
    >>> first, second = queue.append([b"a", b"b"])
    >>> queue.delete([first])
    >>> queue.read(BEGINNING, 10) == [(second, b"b")], queue.contains(first)
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[int, bytes] = {}
        self._next = 1
        self._notes: dict[str, int] = {}

    def append(self, messages: Sequence[bytes]) -> list[bytes]:
        with self._lock:
            ids = range(self._next, self._next + len(messages))
            self._messages.update(zip(ids, messages, strict=True))
            self._next = ids.stop
        return [b"%d-0" % number for number in ids]

    def contains(self, message_id: bytes) -> bool:
        return _number(message_id) in self._messages

    def read(self, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        with self._lock:
            numbers = sorted(number for number in self._messages if number > _number(after))
            return [(b"%d-0" % number, self._messages[number]) for number in numbers[:most]]

    def delete(self, message_ids: Sequence[bytes]) -> None:
        with self._lock:
            for message_id in message_ids:
                self._messages.pop(_number(message_id), None)

    def note(self, notes: Mapping[str, int]) -> None:
        with self._lock:
            self._notes.update(notes)

    def noted(self, name: str) -> int | None:
        return self._notes.get(name)

    def forget_notes(self) -> None:
        with self._lock:
            self._notes.clear()

    def close(self) -> None:
        pass


def _number(message_id: bytes) -> int:
    return int(message_id.partition(b"-")[0])
