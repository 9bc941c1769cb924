"""The online store in Redis (6.2 and later) or Valkey: one server, sentinels, or a cluster.

Each write is a compare-and-set in a Lua script, which the server executes atomically; a script
takes many keys of one bucket, because calls cost more than comparisons. Scripts are sent by digest
and loaded again on a server that does not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.redis_store.connections import ReplyError, Server, pack
from paimon_features.online.store.redis_store.loop_reads import LoopReads
from paimon_features.online.store.redis_store.messages import explain
from paimon_features.online.store.redis_store.redis_cluster import Cluster
from paimon_features.online.store.redis_store.routes import Job, OneServer, Route
from paimon_features.online.store.redis_store.scripts import (
    ACQUIRE,
    COMPARE_AND_SET,
    DELETE_ORPHANS,
    RELEASE,
    RUN_AND_VALUES,
    Script,
)
from paimon_features.online.store.redis_store.sentinel import Primary
from paimon_features.online.store.settings import OnlineSettings
from paimon_features.online.store.store import (
    KEEPS_ALL,
    Evictions,
    StoreLease,
    Write,
    WriteGuard,
    may_evict,
)

_KEYS_PER_SCRIPT = 64
_BYTES_PER_SCRIPT = 1 << 20
_BYTES_PER_ROUND = 1 << 24
_SCAN_COUNT = 1_000
_KEYS_PER_DELETE = 10_000
_ORPHANS_PER_SCRIPT = 1_000


class RedisStore:
    """Records and markers on servers with the Redis protocol. Thread safe.

    Connections are opened on demand and reopened after an outage. Nothing is sent before the
    first call; ``check`` verifies that the store is reachable and suitable.
    """

    def __init__(self, settings: OnlineSettings) -> None:
        self._settings = settings
        self._write_s = settings.write_timeout_ms / 1_000
        self.key_prefix = settings.key_prefix
        self._route = route_of(settings)
        self._get = self._route.get_many

    def __repr__(self) -> str:
        return f"RedisStore({self._settings.where})"

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._get(keys) if keys else []

    def loop_reader(self, loop: asyncio.AbstractEventLoop) -> LoopReads | None:
        """Return a reader for this event loop; None for a cluster, sentinels and TLS."""
        settings, route = self._settings, self._route
        if settings.mode != "server" or settings.tls or not isinstance(route, OneServer):
            return None
        return LoopReads(settings, route, settings.hosts[0], loop)

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        done: list[bool] = []
        for chunks in _rounds(_chunks(writes)):
            jobs = self._answered([_write_job(chunk, run, guard) for chunk in chunks])
            # a restarted server does not know the script
            self._again(
                jobs, chunks, "NOSCRIPT", lambda chunk: [_write_job(chunk, run, guard, text=True)]
            )
            # keys that migrate to another cluster node cannot be written, or guarded, by one script
            self._again(jobs, chunks, "TRYAGAIN", lambda chunk: _one_by_one(chunk, run))
            for job in jobs:
                self._raise_if_error(job)
                done += [flag == 1 for flag in job.reply]
        return done

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        run, values = self._script(RUN_AND_VALUES, keys, [])
        return run.decode(), values

    def acquire_lease(self, key: bytes, owner: str, ttl_ms: int) -> StoreLease:
        holder, fence = self._script(ACQUIRE, [key, key + b":fence"], [owner, ttl_ms])
        name = holder.decode()
        return StoreLease(name, int(fence), name == owner)

    def release_lease(self, key: bytes, owner: str) -> None:
        self._script(RELEASE, [key], [owner])

    def delete(self, keys: Sequence[bytes]) -> None:
        for start in range(0, len(keys), _KEYS_PER_DELETE):
            for job in self._answered(self._route.unlinks(keys[start : start + _KEYS_PER_DELETE])):
                self._raise_if_error(job)

    def delete_orphans(self, orphans: Mapping[bytes, Sequence[bytes]]) -> None:
        chunks = [
            (guard, *keys[start : start + _ORPHANS_PER_SCRIPT])
            for guard, keys in orphans.items()
            for start in range(0, len(keys), _ORPHANS_PER_SCRIPT)
        ]
        jobs = self._answered([_orphan_job(keys) for keys in chunks])
        for job, keys in zip(jobs, chunks, strict=True):
            if _is_refused(job, "NOSCRIPT"):
                (job,) = self._answered([_orphan_job(keys, text=True)])
            # the bucket migrates to another cluster node: the next sweep finds it
            if not _is_refused(job, "TRYAGAIN"):
                self._raise_if_error(job)

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        for server in self._route.servers():
            yield from self._scan_one(server, _escaped(prefix) + b"*")

    def memory_of(self, keys: Sequence[bytes]) -> list[int | None]:
        """Return the memory of each key in bytes, reported by the server; None for absent keys."""
        jobs = self._answered([Job(key, pack("MEMORY", "USAGE", key)) for key in keys])
        for job in jobs:
            self._raise_if_error(job)
        return [job.reply for job in jobs]

    def evictions(self) -> list[Evictions]:
        return [self._evictions_of(server) for server in self._route.servers()]

    def check(self) -> None:
        for server in self._route.servers():
            self._check_one(server)

    def close(self) -> None:
        self._route.close()

    # -- scripts --------------------------------------------------------------------------

    def _script(self, script: Script, keys: Sequence[bytes], arguments: Sequence[str | int]) -> Any:
        words = (len(keys), *keys, *arguments)
        (job,) = self._answered([Job(keys[0], pack("EVALSHA", script.digest, *words))])
        if _is_refused(job, "NOSCRIPT"):
            (job,) = self._answered([Job(keys[0], pack("EVAL", script.text, *words))])
        self._raise_if_error(job)
        return job.reply

    def _again(
        self,
        jobs: list[Job],
        chunks: Sequence[Sequence[Write]],
        word: str,
        instead: Callable[[Sequence[Write]], list[Job]],
    ) -> None:
        """Replace the jobs that failed with ``word`` by other ones, and take their replies."""
        for job, chunk in zip(jobs, chunks, strict=True):
            if _is_refused(job, word):
                parts = self._answered(instead(chunk))
                for part in parts:
                    self._raise_if_error(part)
                job.reply = [flag for part in parts for flag in part.reply]

    def _answered(self, jobs: list[Job]) -> list[Job]:
        if jobs:
            self._route.do(jobs, self._write_s)
        return jobs

    def _raise_if_error(self, job: Job) -> None:
        if isinstance(job.reply, ReplyError):
            raise explain(self._settings, job.reply) from job.reply

    # -- one server after another ---------------------------------------------------------

    def _scan_one(self, server: Server, pattern: bytes) -> Iterator[list[bytes]]:
        cursor, run = b"0", None
        while True:
            page_of = pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            info, page = self._ask(server, pack("INFO", "server") + page_of, 2)
            run_id = _fields(info).get("run_id")
            if run is not None and run_id != run:
                cursor, run = b"0", run_id  # a restarted process does not know our cursor
                continue
            run = run_id
            cursor, keys = page
            if keys:
                yield keys
            if cursor == b"0":
                return

    def _evictions_of(self, server: Server) -> Evictions:
        # Redis 6.2 takes one section per command
        sections = b"".join(pack("INFO", name) for name in ("server", "memory", "stats"))
        fields: dict[str, str] = {}
        for info in self._route.request(server, sections, 3, self._write_s):
            if isinstance(info, ReplyError):
                if str(info).startswith("NOPERM"):  # a reader; check() requires it of writers
                    return Evictions("", 0, None)
                raise explain(self._settings, info) from info
            fields |= _fields(info)
        return Evictions(
            fields.get("run_id", ""),
            int(fields.get("evicted_keys", 0)),
            fields.get("maxmemory_policy", KEEPS_ALL),
        )

    def _check_one(self, server: Server) -> None:
        commands = pack("INFO", "memory") + pack("INFO", "replication")
        memory, replication = map(_fields, self._ask(server, commands, 2))
        policy = memory.get("maxmemory_policy", KEEPS_ALL)
        if policy != KEEPS_ALL:
            raise OnlineStoreError(may_evict(repr(self), policy))
        if replication.get("role") == "slave":
            primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
            raise OnlineStoreError(
                f"{self!r} is a replica of {primary}, but records are written to a primary: set "
                "'url' under [online] to it, or use redis+sentinel://, which finds it"
            )
        # a write detects the rest: full memory, a full disk, an ACL
        key = self._route.key_on(server, f"{self.key_prefix}{{check")
        self._ask(server, pack("SET", key, "1", "PX", 1_000) + pack("UNLINK", key), 2)

    def _ask(self, server: Server, packed: bytes, count: int) -> list[Any]:
        """Return the replies of one server to idempotent commands; an error reply is raised."""
        replies = self._route.request(server, packed, count, self._write_s)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise explain(self._settings, reply) from reply
        return replies


def route_of(settings: OnlineSettings) -> Route:
    """Return the route for these settings."""
    if settings.mode == "cluster":
        return Cluster(settings)
    if settings.mode == "sentinel":
        return Primary(settings)
    return OneServer(settings, Server(settings, lambda deadline: settings.hosts[0]))


def _write_job(
    chunk: Sequence[Write], run: str | None, guard: WriteGuard | None, *, text: bool = False
) -> Job:
    expire_ms = "" if chunk[0].expire_ms is None else chunk[0].expire_ms
    keys = [write.key for write in chunk]
    expected = b""
    if guard is not None:
        keys.append(guard.key)
        expected = guard.expected
    pairs = [word for write in chunk for word in (write.expected or b"", write.value)]

    def packed(again: str) -> bytes:
        script = ("EVAL", COMPARE_AND_SET.text) if text else ("EVALSHA", COMPARE_AND_SET.digest)
        return pack(*script, len(keys), *keys, run or "", expire_ms, again, expected, *pairs)

    return Job(keys[0], packed(""), lambda: packed("1"))


def _orphan_job(keys: Sequence[bytes], *, text: bool = False) -> Job:
    script = ("EVAL", DELETE_ORPHANS.text) if text else ("EVALSHA", DELETE_ORPHANS.digest)
    return Job(keys[0], pack(*script, len(keys), *keys))


def _one_by_one(chunk: Sequence[Write], run: str | None) -> list[Job]:
    return [_write_job([write], run, None, text=True) for write in chunk]


def _rounds(chunks: Iterable[Sequence[Write]]) -> Iterator[list[Sequence[Write]]]:
    """Yield groups of chunks to send together, small enough that a round meets its deadline."""
    batch: list[Sequence[Write]] = []
    size = 0
    for chunk in chunks:
        if size > _BYTES_PER_ROUND:
            yield batch
            batch, size = [], 0
        batch.append(chunk)
        size += sum(len(write.value) for write in chunk)
    if batch:
        yield batch


def _chunks(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Yield runs of writes for one script each: of bounded size and equal expiry."""
    start = size = 0
    for i, write in enumerate(writes):
        full = i - start == _KEYS_PER_SCRIPT or size > _BYTES_PER_SCRIPT
        if i > start and (full or write.expire_ms != writes[start].expire_ms):
            yield writes[start:i]
            start, size = i, 0
        size += len(write.value)
    if start < len(writes):
        yield writes[start:]


def _is_refused(job: Job, word: str) -> bool:
    return isinstance(job.reply, ReplyError) and str(job.reply).startswith(word)


def _fields(info: bytes) -> dict[str, str]:
    """Return the fields of an INFO reply by name."""
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def _escaped(prefix: bytes) -> bytes:
    """Return a prefix escaped for a glob pattern."""
    for special in (b"\\", b"*", b"?", b"["):
        prefix = prefix.replace(special, b"\\" + special)
    return prefix
