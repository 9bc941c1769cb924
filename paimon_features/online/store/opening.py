"""Open the configured online store, or a queue on the same servers."""

from __future__ import annotations

from paimon_features.core.extras import missing_extra
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.online.store.queue import MemoryQueue, Queue
from paimon_features.online.store.settings import OnlineSettings, from_url
from paimon_features.online.store.store import OnlineStore

# the Redis client is imported only where a server is used: a memory store needs no extra


def open_store(where: str | OnlineSettings) -> OnlineStore:
    """Return the store of these settings, or at this address with default settings.

    It connects on first use. ``memory://`` is a new, empty store in this process.

    Raises
    ------
    ConfigurationError
        For an address that is not supported.
    MissingExtraError
        If the Redis client is not installed.
    """
    settings = from_url(where) if isinstance(where, str) else where
    if settings.mode == "memory":
        return MemoryStore(key_prefix=settings.key_prefix)
    try:
        from paimon_features.online.store.redis_store import RedisStore
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the online store") or error from error

    return RedisStore(settings)


def open_queue(where: str | OnlineSettings, name: str) -> Queue:
    """Return the queue of this name, on the servers of these settings or at this address.

    It connects on first use. ``memory://`` is a new, empty queue in this process.

    Raises
    ------
    ConfigurationError
        For an address that is not supported.
    MissingExtraError
        If the Redis client is not installed.
    """
    settings = from_url(where) if isinstance(where, str) else where
    if settings.mode == "memory":
        return MemoryQueue()
    try:
        from paimon_features.online.store.redis_store.queue import RedisQueue
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a queue in the online store") or error from error

    return RedisQueue(settings, name)
