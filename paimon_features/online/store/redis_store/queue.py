"""A queue as a Redis stream, with its notes in a hash.

::

    pf:{queue:NAME}          the stream; an entry's field m is the message
    pf:{queue:NAME}#notes    name -> number

There is no consumer group: the single consumer deletes messages after processing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.online.store.redis_store.connections import ReplyError, pack
from paimon_features.online.store.redis_store.messages import explain
from paimon_features.online.store.redis_store.routes import Job
from paimon_features.online.store.redis_store.store import route_of
from paimon_features.online.store.settings import OnlineSettings

_BYTES_PER_ROUND = 1 << 24


class RedisQueue:
    """See :class:`paimon_features.online.store.queue.Queue`.

    Raises OnlineStoreError if the servers are unavailable or reject a command. Messages are in
    server memory: they survive a restart as far as persistence is configured.
    """

    def __init__(self, settings: OnlineSettings, name: str) -> None:
        self._settings = settings
        self._timeout_s = settings.write_timeout_ms / 1_000
        self._route = route_of(settings)
        self._key = f"{settings.key_prefix}{{queue:{name}}}".encode()
        self._notes = self._key + b"#notes"

    def __repr__(self) -> str:
        return f"RedisQueue({self._settings.where}, {self._key.decode()})"

    def append(self, messages: Sequence[bytes]) -> list[bytes]:
        ids: list[bytes] = []
        packed: list[bytes] = []
        size = 0
        for message in messages:
            if packed and size + len(message) > _BYTES_PER_ROUND:
                ids += self._do(packed)
                packed, size = [], 0
            packed.append(pack("XADD", self._key, "*", "m", message))
            size += len(message)
        return ids + self._do(packed)

    def contains(self, message_id: bytes) -> bool:
        return bool(self._do([pack("XRANGE", self._key, message_id, message_id)])[0])

    def read(self, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        command = pack("XRANGE", self._key, b"(" + after, "+", "COUNT", most)
        return [(message_id, fields[1]) for message_id, fields in self._do([command])[0]]

    def delete(self, message_ids: Sequence[bytes]) -> None:
        if message_ids:
            self._do([pack("XDEL", self._key, *message_ids)])

    def note(self, notes: Mapping[str, int]) -> None:
        if notes:
            words = [word for pair in notes.items() for word in pair]
            self._do([pack("HSET", self._notes, *words)])

    def noted(self, name: str) -> int | None:
        value = self._do([pack("HGET", self._notes, name)])[0]
        return None if value is None else int(value)

    def forget_notes(self) -> None:
        self._do([pack("DEL", self._notes)])

    def close(self) -> None:
        self._route.close()

    def _do(self, packed: Sequence[bytes]) -> list[Any]:
        jobs = [Job(self._key, words) for words in packed]
        if jobs:
            self._route.do(jobs, self._timeout_s)
        for job in jobs:
            if isinstance(job.reply, ReplyError):
                raise explain(self._settings, job.reply) from job.reply
        return [job.reply for job in jobs]
