"""The online store in Redis (6.2 and later) or Valkey: the only importer of the client.

Each write is a compare-and-set in a Lua script, which Redis runs as one step; scripts take many
keys of one bucket at once, because calls cost more than the comparison. Scripts are sent by
their digest and loaded again when a restarted server does not know them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from paimon_features.errors import ConfigurationError, MissingExtraError, OnlineStoreError
from paimon_features.online.store import Lease, Write

try:
    import redis
    from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError
except ImportError as _error:
    raise MissingExtraError.of("redis", "serve", "the Redis store") from _error

CONNECT_TIMEOUT_S = 3.0
TIMEOUT_S = 10.0
_KEYS_PER_SCRIPT = 64
_BYTES_PER_SCRIPT = 1 << 20
_SCAN_COUNT = 1_000

Result = TypeVar("Result")


class _Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_RUN = """
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
end
"""

_COMPARE_AND_SET = _Script(
    _RUN
    + """
if ARGV[1] ~= '' and run_id() ~= ARGV[1] then return redis.error_reply('RESTARTED') end
local expire_ms, done = ARGV[2], {}
for i, key in ipairs(KEYS) do
  local expected, value = ARGV[2 * i + 1], ARGV[2 * i + 2]
  local fits
  if expected == '' then
    fits = redis.call('EXISTS', key) == 0
  else
    fits = redis.call('GETRANGE', key, 0, #expected - 1) == expected
  end
  if fits then
    if expire_ms == '' then
      redis.call('SET', key, value)
    else
      redis.call('SET', key, value, 'PX', expire_ms)
    end
  end
  done[i] = fits and 1 or 0
end
return done
"""
)

_RUN_AND_VALUES = _Script(_RUN + "return {run_id(), redis.call('MGET', unpack(KEYS))}")

_ACQUIRE = _Script("""
local found = redis.call('GET', KEYS[1])
if not found then
  -- a number that grows with every new owner, also when the lease ran out in between
  local fence = redis.call('INCR', KEYS[2])
  redis.call('SET', KEYS[1], fence .. ':' .. ARGV[1], 'PX', ARGV[2])
  return {ARGV[1], fence}
end
local colon = string.find(found, ':', 1, true)
local fence, owner = tonumber(string.sub(found, 1, colon - 1)), string.sub(found, colon + 1)
if owner == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {owner, fence}
""")

_RELEASE = _Script("""
local found = redis.call('GET', KEYS[1])
if found and string.sub(found, string.find(found, ':', 1, true) + 1) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
""")


class RedisStore:
    """Records and markers in one Redis server. Safe to use from several threads.

    Connections are opened when needed and again after the server was away; a call that the
    server did not answer raises, it is not repeated in silence.
    """

    def __init__(self, client: redis.Redis) -> None:
        # the client's annotations leave open whether it is the asynchronous one
        self._client: Any = client

    @classmethod
    def connect(cls, url: str) -> RedisStore:
        """The store at ``redis://[user:password@]host[:port][/db]`` (``rediss://`` for TLS).

        Nothing is sent yet; ``check`` tells whether the server is there and fit.

        Raises
        ------
        ConfigurationError
            For an address of another form.
        """
        try:
            client = redis.Redis.from_url(
                url, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=TIMEOUT_S
            )
        except ValueError as error:
            raise ConfigurationError(f"online store {_without_password(url)!r}: {error}") from error
        return cls(client)

    def __repr__(self) -> str:
        where = self._client.connection_pool.connection_kwargs
        return f"RedisStore({where.get('host', where.get('path'))}:{where.get('port', '')})"

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        found: list[bytes | None] = self._ask(lambda: self._client.mget(keys))
        return found

    def compare_and_set_many(self, writes: Sequence[Write], run: str | None = None) -> list[bool]:
        chunks = list(_chunks(writes))
        results: list[Any] = self._ask(lambda: self._send(chunks, run))
        missing = [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
        if missing:  # the server was started anew
            self._ask(lambda: self._client.script_load(_COMPARE_AND_SET.text))
            again = self._ask(lambda: self._send([chunks[i] for i in missing], run))
            for i, result in zip(missing, again, strict=True):
                results[i] = result
        done: list[bool] = []
        for result in results:
            if isinstance(result, Exception):
                raise self._error(result) from result
            done.extend(flag == 1 for flag in result)
        return done

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        run, values = self._run_script(_RUN_AND_VALUES, keys, [])
        return run.decode(), values

    def acquire_lease(self, key: bytes, owner: str, ttl_ms: int) -> Lease:
        holder, fence = self._run_script(_ACQUIRE, [key, key + b":fence"], [owner, ttl_ms])
        name = holder.decode()
        return Lease(name, int(fence), name == owner)

    def release_lease(self, key: bytes, owner: str) -> None:
        self._run_script(_RELEASE, [key], [owner])

    def delete(self, keys: Sequence[bytes]) -> None:
        if keys:
            self._ask(lambda: self._client.unlink(*keys))

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        cursor = 0
        while True:
            cursor, page = self._ask(
                lambda at=cursor: self._client.scan(  # type: ignore[misc]
                    at, match=_escaped(prefix) + b"*", count=_SCAN_COUNT
                )
            )
            if page:
                yield page
            if cursor == 0:
                return

    def check(self) -> None:
        info: dict[str, Any] = self._ask(lambda: self._client.info("memory"))
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise OnlineStoreError(
                f"{self!r} has maxmemory-policy {policy!r}: it drops keys when it is full, and a "
                "dropped record would be read as an entity without events. Set it to "
                "'noeviction' (CONFIG SET maxmemory-policy noeviction)"
            )

    def close(self) -> None:
        self._client.close()

    def _send(self, chunks: Sequence[Sequence[Write]], run: str | None) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for chunk in chunks:
                expire_ms = chunk[0].expire_ms
                arguments: list[bytes | str | int] = [run or ""]
                arguments.append("" if expire_ms is None else expire_ms)
                for write in chunk:
                    arguments += (write.expected or b"", write.value)
                keys = [write.key for write in chunk]
                pipeline.evalsha(_COMPARE_AND_SET.digest, len(keys), *keys, *arguments)
            results: list[Any] = pipeline.execute(raise_on_error=False)
            return results

    def _run_script(
        self, script: _Script, keys: Sequence[bytes], arguments: Sequence[str | int]
    ) -> Any:
        def call() -> Any:
            try:
                return self._client.evalsha(script.digest, len(keys), *keys, *arguments)
            except NoScriptError:
                return self._client.eval(script.text, len(keys), *keys, *arguments)

        return self._ask(call)

    def _ask(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (RedisError, OSError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> OnlineStoreError:
        if "RESTARTED" in str(error):
            return OnlineStoreError(
                f"{self!r} was restarted while it was written to; what it still holds is unsure, "
                "so this part is applied again"
            )
        if isinstance(error, OutOfMemoryError) or "OOM" in str(error):
            return OnlineStoreError(
                f"{self!r} is full ({error}); give it more memory (maxmemory). "
                "Nothing is lost: the materializer goes on where it stopped"
            )
        message = f"{self!r}: {type(error).__name__}: {error}".rstrip(".")
        away = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
        if away and not isinstance(error, redis.AuthenticationError):
            message += (
                ". Is a Redis or Valkey server running there? Its address is 'url' under [online] "
                "in paimon-features.toml, or PAIMON_FEATURES_ONLINE_URL in the environment"
            )
        return OnlineStoreError(message)


def _chunks(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Runs of writes of one script each: of bounded size, and of one expiry."""
    start = size = 0
    for i, write in enumerate(writes):
        full = i - start == _KEYS_PER_SCRIPT or size > _BYTES_PER_SCRIPT
        if i > start and (full or write.expire_ms != writes[start].expire_ms):
            yield writes[start:i]
            start, size = i, 0
        size += len(write.value)
    if start < len(writes):
        yield writes[start:]


def _escaped(prefix: bytes) -> bytes:
    """A prefix as part of a glob pattern: only itself fits it."""
    for special in (b"\\", b"*", b"?", b"["):
        prefix = prefix.replace(special, b"\\" + special)
    return prefix


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
