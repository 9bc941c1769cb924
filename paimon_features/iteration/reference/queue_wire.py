"""The wire of the reference executor, which tests can flush."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.iteration.wires import ENTRY, Notice


class QueueWire:
    """Notices in a list; payloads larger than ``inline`` bytes are stored separately, as on Redis.

    Examples
    --------
    >>> wire = QueueWire()
    >>> generation = wire.begin()
    >>> wire.publish(generation, [Notice(ENTRY, node=1, subtask=0, payload=b"x")])
    >>> [notice.payload for notice in wire.poll(wait_ms=0)]
    [b'x']
    """

    def __init__(self, inline: int = 2**20) -> None:
        self._inline = inline
        self._generation = 0
        self._notices: list[Notice] = []
        self._payloads: dict[tuple[int, int, int, int], bytes] = {}
        self._taken: Counter[tuple[int, int, int, int]] = Counter()
        self.status: dict[str, Any] = {}

    def begin(self) -> int:
        self._generation += 1
        self._forget()
        return self._generation

    def publish(self, generation: int, notices: Sequence[Notice]) -> None:
        if generation != self._generation:
            return
        for notice in notices:
            payload = notice.payload
            if payload is not None and notice.kind == ENTRY and len(payload) > self._inline:
                self._payloads[generation, *notice[1:3], notice.seq] = payload
                notice = notice._replace(payload=None)
            self._notices.append(notice)

    def poll(self, wait_ms: int) -> list[Notice]:
        notices, self._notices = self._notices, []
        return notices

    def take(self, generation: int, notice: Notice, readers: int = 1) -> bytes:
        name = generation, notice.node, notice.subtask, notice.seq
        payload = self._payloads.get(name)
        self._taken[name] += 1
        if self._taken[name] == readers:
            self._payloads.pop(name, None)
            del self._taken[name]
        if payload is None:
            raise JobError(
                f"feedback {notice.seq} of node {notice.node}, subtask {notice.subtask} is no "
                f"longer on the wire (generation {generation}); it is published again after "
                "a restart"
            )
        return payload

    def report(self, status: Mapping[str, Any]) -> None:
        self.status = dict(status)

    def waiting(self) -> int:
        """Return the number of notices that were not polled yet."""
        return len(self._notices)

    def flush(self) -> None:
        """Lose everything except the generation, like a Redis server that was flushed."""
        self._forget()

    def _forget(self) -> None:
        self._notices.clear()
        self._payloads.clear()
        self._taken.clear()
