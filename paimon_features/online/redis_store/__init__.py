"""The online store on servers that speak Redis' protocol: the only home of their client."""

from paimon_features.online.redis_store.store import RedisStore

__all__ = ["RedisStore"]
