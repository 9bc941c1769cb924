"""Error messages for failures of the online store, with the action to take."""

from __future__ import annotations

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.redis_store.breaker import BreakerOpen
from paimon_features.online.store.redis_store.connections import NoReplyError, Refused
from paimon_features.online.store.settings import PASSWORD_VARIABLE, URL_VARIABLE, OnlineSettings

_ADDRESS = (
    f"The address is 'url' under [online] in paimon-features.toml, or {URL_VARIABLE} in the "
    "environment"
)
_EXPLANATIONS = {
    "RESTARTED": "it was restarted or replaced during a write; its recent writes may be lost, so "
    "this part is applied again",
    "OOM": "it is full; increase its memory (maxmemory). Nothing is lost: the materializer "
    "resumes where it stopped",
    "READONLY": "it is a read-only replica; point 'url' under [online] at the primary, or use "
    "redis+sentinel://, which finds it",
    "MISCONF": "it rejects writes because it cannot persist to disk; see its log, free space, or "
    "disable persistence (CONFIG SET save ''): everything is in the lake",
    "NOREPLICAS": "it rejects writes because too few replicas are connected "
    "(min-replicas-to-write)",
    "NOPERM": "the ACL of the user does not allow this; "
    "docs/how-to/serving/online-store.md lists the required commands and keys",
    "NOAUTH": f"it requires a password; set {PASSWORD_VARIABLE}, and 'user' under [online] unless "
    "it is the default user",
    "MOVED": "it is one node of a cluster; use redis+cluster://",
    "LOADING": "it was restarted and is still loading its data",
    "CLUSTERDOWN": "the cluster has slots without a node; see CLUSTER INFO",
    "TRYAGAIN": "keys are being moved to another node of the cluster",
}


def explain(settings: OnlineSettings, error: BaseException) -> OnlineStoreError:
    """Return the error for users that corresponds to a failure of a connection or a server."""
    where = f"online store {settings.where}"
    if isinstance(error, BreakerOpen):
        return OnlineStoreError(
            f"{where} is unavailable, requests are suspended: {error}. {_ADDRESS}"
        )
    if isinstance(error, Refused):
        return OnlineStoreError(
            f"{where}: refused by {error}. Check the user ('user' under [online]), the password "
            f"({PASSWORD_VARIABLE}), the database number, and with rediss:// the CA certificate "
            "(tls_ca)"
        )
    if isinstance(error, NoReplyError):
        return OnlineStoreError(_no_reply(where, settings, error))
    text = str(error)
    if "RESTARTED" in text:
        return OnlineStoreError(f"{where}: {_EXPLANATIONS['RESTARTED']}")
    if settings.mode == "cluster" and text.startswith(("MOVED", "ASK")):
        return OnlineStoreError(f"{where}: its nodes disagree on the owner of a slot ({text})")
    for word, meaning in _EXPLANATIONS.items():
        # errors inside scripts are wrapped in the server's own text
        if text.startswith(word) or f" {word} " in text or f"-{word} " in text:
            return OnlineStoreError(f"{where}: {meaning} ({text})")
    return OnlineStoreError(f"{where}: {text}")


def _no_reply(where: str, settings: OnlineSettings, error: NoReplyError) -> str:
    if error.timed_out:
        limits = f"timeout {settings.timeout_ms} ms, write_timeout {settings.write_timeout_ms} ms"
        return f"{where}: {error} ([online] {limits}; connecting {settings.connect_timeout_ms} ms)"
    unsure = " The command may have been executed." if error.sent else ""
    return (
        f"{where}: connection failed: {error}.{unsure} Is a Redis or Valkey server running at "
        f"this address? " + _ADDRESS
    )
