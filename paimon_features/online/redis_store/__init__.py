"""The online store on servers that speak Redis' protocol: the only home of their client."""

from paimon_features.errors import MissingExtraError

# before the modules of this package, which import the client at their top
try:
    import hiredis  # noqa: F401
    import redis  # noqa: F401
except ImportError as error:
    raise MissingExtraError.of("redis", "serve", "an online store on Redis") from error

from paimon_features.online.redis_store.store import RedisStore

__all__ = ["RedisStore"]
