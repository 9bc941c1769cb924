"""The online store on servers that speak Redis' protocol: the only home of their client."""

from paimon_features.core.errors import MissingExtraError

# before the modules of this package, which import the client at their top
try:
    import redis  # noqa: F401, I001

    import hiredis  # noqa: F401
except ImportError as error:
    package = error.name or "redis"
    raise MissingExtraError.of(package, "serve", "an online store on Redis") from error

from paimon_features.online.store.redis_store.store import RedisStore

__all__ = ["RedisStore"]
