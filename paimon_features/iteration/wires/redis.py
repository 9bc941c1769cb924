"""The wire through a server of the Redis protocol, for tasks in several processes and hosts.

One stream per generation carries the notices; large payloads are in a hash. Both keys contain the
generation, so that what a task of an old attempt still writes is never read, and both expire a day
after the last write.

Losses are detected. Every publisher numbers its messages, and a gap fails the attempt; so does a
server that has lost the generation (flushed, restarted, failed over). Generations start with the
time, so that they increase even after such a loss.

Notices and payloads are pickles, and a server can have other users: each is sealed with the job's
key for its stream or payload, and nothing that another key has sealed is unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.errors import JobError, MissingExtraError
from paimon_features.core.times.clock import now_ms
from paimon_features.iteration.wires import Notice

INLINE_BYTES = 16_384
"""Larger payloads are stored separately, so that the only head need not read them."""
EXPIRY_S = 86_400
TIMEOUT_S = 10.0
"""Timeout of a response of the server, in addition to the wait for notices."""
_READ = 1_024
_LOST = "iteration: the Redis wire {} {}; the attempt fails and the next one continues"


class RedisWire:
    """The wire of the iteration ``name`` at ``url``, as used by one task of the job of ``seal``.

    Raises
    ------
    MissingExtraError
        If the client library is not installed.
    JobError
        From any method, if the server cannot be reached, has lost messages, or has some that were
        not written by this job.
    """

    def __init__(self, url: str, name: str, seal: Seal) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError.of("redis", "serve", "the Redis wire") from error
        self._failure = redis.RedisError
        self._client: Any = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S)
        self._where = f"{name!r} at {_without_password(url)}"
        # in braces: all keys of an iteration are on the same node of a cluster
        self._prefix = f"iteration:{{{name}}}:"
        self._seal = seal
        self._id = os.urandom(8)
        self._published: dict[int, int] = {}
        self._generation = 0
        self._position = b"0"
        self._read_since_trim = False
        self._expected: dict[bytes, int] = {}

    def begin(self) -> int:
        key = self._prefix + "generation"
        seed = now_ms() << 20
        with self._errors("begins"):
            with self._client.pipeline() as pipe:
                pipe.set(key, seed, nx=True)
                pipe.incr(key)
                pipe.expire(key, EXPIRY_S)
                generation = int(pipe.execute()[1])
            self._client.delete(*self._keys(generation - 1))
        self._generation = generation
        self._position = b"0"
        self._read_since_trim = False
        self._expected.clear()
        return generation

    def publish(self, generation: int, notices: Sequence[Notice]) -> None:
        number = self._published.setdefault(generation, 0)
        stream, payloads = self._keys(generation)
        sent = []
        # the payloads first: a notice that can be read has its payload
        with self._errors("publishes"), self._client.pipeline(transaction=False) as pipe:
            for notice in notices:
                if notice.payload is not None and len(notice.payload) > INLINE_BYTES:
                    field = _field(notice)
                    sealed = self._seal.close(f"{payloads}:{field}".encode(), notice.payload)
                    pipe.hset(payloads, field, sealed)
                    pipe.expire(payloads, EXPIRY_S)
                    notice = notice._replace(payload=None)
                sent.append(tuple(notice))
            message = pickle.dumps((self._id, number, sent), protocol=5)
            pipe.xadd(stream, {b"d": self._seal.close(stream.encode(), message)})
            pipe.expire(stream, EXPIRY_S)
            pipe.execute()
        self._published[generation] = number + 1

    def poll(self, wait_ms: int) -> list[Notice]:
        stream, _ = self._keys(self._generation)
        block = wait_ms if wait_ms > 0 else None
        # one round trip; what is lost after the generation was read leaves a gap in the numbers of
        # a publisher, or is noticed by the next call
        with self._errors("reads"), self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._prefix + "generation")
            if self._read_since_trim:
                pipe.xtrim(stream, minid=self._position, approximate=False)
            pipe.xread({stream: self._position}, count=_READ, block=block)
            owner, *_, messages = pipe.execute()
        entries = messages[0][1] if messages else []
        self._read_since_trim = bool(entries)
        if entries:
            self._position = entries[-1][0]
        if owner is None:
            raise self._lost("has lost its data")
        if self._number(owner) != self._generation:
            raise self._lost("belongs to a newer attempt")
        context, description = (
            stream.encode(),
            f"iteration: a message of the Redis wire {self._where}",
        )
        return [
            notice
            for _, fields in entries
            for notice in self._read(self._seal.open(context, fields.get(b"d", b""), description))
        ]

    def take(self, generation: int, notice: Notice, readers: int = 1) -> bytes:
        _, payloads = self._keys(generation)
        field = _field(notice)
        with self._errors("takes a payload"):
            if readers == 1:
                with self._client.pipeline() as pipe:
                    pipe.hget(payloads, field)
                    pipe.hdel(payloads, field)
                    payload = pipe.execute()[0]
            else:
                counter = f"{field}:taken"
                with self._client.pipeline() as pipe:
                    pipe.hget(payloads, field)
                    pipe.hincrby(payloads, counter, 1)
                    payload, count = pipe.execute()
                if count == readers:
                    self._client.hdel(payloads, field, counter)
        if payload is None:
            raise self._lost(f"has lost the records {notice.seq} of {notice.node}")
        description = f"iteration: a payload of the Redis wire {self._where}"
        return self._seal.open(f"{payloads}:{field}".encode(), payload, description)

    def report(self, status: Mapping[str, Any]) -> None:
        key = self._prefix + "status"
        fields = {name: json.dumps(value) for name, value in status.items()}
        with self._errors("reports"), self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, mapping=fields)
            pipe.expire(key, EXPIRY_S)
            pipe.execute()

    def status(self) -> dict[str, Any]:
        """Return the last reported status."""
        with self._errors("reads the status"):
            fields = self._client.hgetall(self._prefix + "status")
        try:
            return {name.decode(): json.loads(value) for name, value in fields.items()}
        except (ValueError, RecursionError) as error:
            raise JobError(
                f"iteration: the Redis wire {self._where} has a status that no job has written "
                f"({str(error)[:200]}); another program writes its keys, {self._prefix}*: give "
                "the wire a server or a database of its own"
            ) from None

    def discard(self) -> None:
        """Delete all data of an iteration that has ended."""
        with self._errors("deletes its data"):
            owner = self._client.get(self._prefix + "generation")
            keys = [self._prefix + "generation", self._prefix + "status"]
            if owner is not None:
                keys += self._keys(self._number(owner))
            self._client.delete(*keys)

    def close(self) -> None:
        """Close the connections; they are opened again on the next use."""
        self._client.close()

    def _keys(self, generation: int) -> tuple[str, str]:
        return f"{self._prefix}{generation}:notices", f"{self._prefix}{generation}:payloads"

    def _read(self, data: bytes) -> list[Notice]:
        publisher, number, notices = pickle.loads(data)
        expected = self._expected.get(publisher, 0)
        if number < expected:
            return []  # a retry by a client that did not receive the response
        if number > expected:
            raise self._lost(f"has lost {number - expected} messages")
        self._expected[publisher] = number + 1
        return [Notice._make(notice) for notice in notices]

    def _number(self, owner: bytes) -> int:
        if not owner.isdigit() or len(owner) > 20:
            raise JobError(
                f"iteration: the Redis wire {self._where} has the generation {owner[:40]!r}, "
                f"expected a number; another program writes its keys, {self._prefix}*: give the "
                "wire a server or a database of its own"
            )
        return int(owner)

    def _lost(self, what: str) -> JobError:
        return JobError(_LOST.format(self._where, what))

    def _errors(self, doing: str) -> _Errors:
        return _Errors(self._failure, f"{self._where} ({doing})")


class _Errors:
    """Converts errors of the client into JobError. A class instead of a generator, because it is
    entered thousands of times per second."""

    __slots__ = ("_failure", "_where")

    def __init__(self, failure: type[Exception], where: str) -> None:
        self._failure = failure
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, self._failure):
            raise JobError(f"iteration: the Redis wire {self._where} fails: {error}") from error


def _field(notice: Notice) -> str:
    return f"{notice.node}:{notice.subtask}:{notice.seq}"


def _without_password(url: str) -> str:
    """Return an address without its login and its options, which may have a password, too.

    >>> _without_password("redis://me:secret@host:6379/0?password=secret")
    'redis://host:6379/0'
    """
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]
