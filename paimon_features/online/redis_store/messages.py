"""What failures mean, in words that say what to do."""

from __future__ import annotations

from paimon_features.errors import OnlineStoreError
from paimon_features.online.redis_store.breaker import BreakerOpen
from paimon_features.online.redis_store.connections import NoReplyError, Refused
from paimon_features.online.settings import PASSWORD_VARIABLE, URL_VARIABLE, OnlineSettings

_ADDRESS = (
    f"Its address is 'url' under [online] in paimon-features.toml, or {URL_VARIABLE} in the "
    "environment"
)
_ANSWERS = {
    "RESTARTED": "it was restarted or replaced while it was written to; what it still holds is "
    "unsure, so this part is applied again",
    "OOM": "it is full; give it more memory (maxmemory). Nothing is lost: the materializer goes "
    "on where it stopped",
    "READONLY": "it is a read-only replica; point 'url' under [online] at the primary, or use "
    "redis+sentinel://, which finds it",
    "MISCONF": "it refuses writes because it cannot save to its disk; see its log, make room, or "
    "turn saving off (CONFIG SET save ''): the lake holds everything",
    "NOREPLICAS": "it refuses writes because too few replicas are connected "
    "(min-replicas-to-write)",
    "NOPERM": "the ACL of its user does not allow this; "
    "docs/how-to/serving/online-store.md lists the commands and keys that are needed",
    "NOAUTH": f"it wants a password; set {PASSWORD_VARIABLE}, and 'user' under [online] if it is "
    "not the default user",
    "MOVED": "it is one node of a cluster; use redis+cluster://",
    "LOADING": "it was started and still loads what it had saved",
    "CLUSTERDOWN": "the cluster has slots that no node serves; see CLUSTER INFO",
    "TRYAGAIN": "keys are being moved to another node of the cluster",
}


def explain(settings: OnlineSettings, error: BaseException) -> OnlineStoreError:
    """The error that a user sees for what a connection or a server said."""
    where = f"online store {settings.where}"
    if isinstance(error, BreakerOpen):
        return OnlineStoreError(
            f"{where} does not answer, and is not asked now: {error}. {_ADDRESS}"
        )
    if isinstance(error, Refused):
        return OnlineStoreError(
            f"{where}: refused by {error}. Is the user right ('user' under [online]), the "
            f"password ({PASSWORD_VARIABLE}), the number of the database, and with rediss:// the "
            "certificate of the CA (tls_ca)?"
        )
    if isinstance(error, NoReplyError):
        return OnlineStoreError(_unanswered(where, settings, error))
    text = str(error)
    if "RESTARTED" in text:
        return OnlineStoreError(f"{where}: {_ANSWERS['RESTARTED']}")
    if settings.mode == "cluster" and text.startswith(("MOVED", "ASK")):
        return OnlineStoreError(f"{where}: its nodes do not agree on who serves a slot ({text})")
    for word, meaning in _ANSWERS.items():
        # inside of scripts the server puts its own words around it
        if text.startswith(word) or f" {word} " in text or f"-{word} " in text:
            return OnlineStoreError(f"{where}: {meaning} ({text})")
    return OnlineStoreError(f"{where}: {text}")


def _unanswered(where: str, settings: OnlineSettings, error: NoReplyError) -> str:
    if error.timed_out:
        limits = f"timeout {settings.timeout_ms} ms, write_timeout {settings.write_timeout_ms} ms"
        return f"{where}: {error} ([online] {limits}; connecting {settings.connect_timeout_ms} ms)"
    unsure = " Whether it was done is not known." if error.sent else ""
    return (
        f"{where}: connection failed: {error}.{unsure} Is a Redis or Valkey server running there? "
        + _ADDRESS
    )
