"""Connection settings of the online store, from ``[online]`` and the environment, validated."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from paimon_features.core.errors import ConfigurationError, DefinitionError
from paimon_features.core.windows import parse_duration
from paimon_features.online.store.keys import PREFIX

DEFAULT_URL = "redis://127.0.0.1:6379/0"
URL_VARIABLE = "PAIMON_FEATURES_ONLINE_URL"
PASSWORD_VARIABLE = "PAIMON_FEATURES_ONLINE_PASSWORD"
SENTINEL_PASSWORD_VARIABLE = "PAIMON_FEATURES_ONLINE_SENTINEL_PASSWORD"

FORMS = (
    "redis://[user@]host[:port][/db], redis+cluster://host:port,host:port, "
    "redis+sentinel://host:port,host:port/service[/db], the same with rediss for TLS, "
    "unix:///path/of/socket[?db=N], or memory://"
)
_DEFAULT_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379}

Mode = Literal["memory", "server", "cluster", "sentinel"]


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """How to reach the online store. Times are milliseconds.

    ``hosts`` are the server, the cluster's seed nodes, or the sentinels; a server's Unix socket is
    its path and the port 0. ``timeout_ms`` bounds a read including its retries,
    ``write_timeout_ms`` every other call. ``retries`` is the number of retries of a call that
    failed before its deadline, ``connections`` the size of the connection pool per server.

    >>> url = "redis+sentinel://app:pw@a,b:26380/main/2"
    >>> settings = OnlineSettings.of({"url": url}, environ={})
    >>> settings.mode, settings.hosts, settings.service, settings.db
    ('sentinel', (('a', 26379), ('b', 26380)), 'main', 2)
    >>> "pw" in repr(settings), settings.where
    (False, 'redis+sentinel://a:26379,b:26380/main/2')
    """

    mode: Mode = "server"
    hosts: tuple[tuple[str, int], ...] = (("127.0.0.1", 6379),)
    db: int = 0
    service: str = ""
    tls: bool = False
    tls_verify: bool = True
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    key_prefix: str = PREFIX
    connect_timeout_ms: int = 1_000
    timeout_ms: int = 1_000
    write_timeout_ms: int = 10_000
    retries: int = 3
    connections: int = 32

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any] | None = None,
        *,
        root: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> OnlineSettings:
        """Return the settings from ``[online]`` and the environment.

        ``values`` are the entries of ``[online]``, already type-checked; paths are
        relative to ``root``. PAIMON_FEATURES_ONLINE_URL replaces ``url``; a password comes from
        PAIMON_FEATURES_ONLINE_PASSWORD, else from the address.

        Raises
        ------
        ConfigurationError
            For an invalid setting; the message never contains a password.
        """
        values = dict(values or {})
        url = environ.get(URL_VARIABLE) or values.get("url", DEFAULT_URL)
        settings = from_url(url)
        if not settings.user and values.get("user"):
            settings = replace(settings, user=values["user"])
        if password := environ.get(PASSWORD_VARIABLE):
            settings = replace(settings, password=password)
        if settings.user and settings.password is None and settings.mode != "memory":
            raise ConfigurationError(
                f"[online] user {settings.user!r} has no password; set {PASSWORD_VARIABLE} in the "
                "environment"
            )
        paths: dict[str, Path] = {
            name: (root or Path()) / Path(values[name]).expanduser()
            for name in ("tls_ca", "tls_cert", "tls_key")
            if name in values
        }
        prefix = values.get("key_prefix", PREFIX)
        if not re.fullmatch(r"[A-Za-z0-9:._/-]{1,64}", prefix):
            # braces would change the hash tag and scatter a bucket over a cluster
            raise ConfigurationError(
                f"[online] key_prefix = {prefix!r}; expected 1 to 64 letters, digits or : . _ / -"
            )
        settings = replace(
            settings,
            sentinel_password=environ.get(SENTINEL_PASSWORD_VARIABLE),
            key_prefix=prefix,
            connect_timeout_ms=_duration(values, "connect_timeout", settings.connect_timeout_ms),
            timeout_ms=_duration(values, "timeout", settings.timeout_ms),
            write_timeout_ms=_duration(values, "write_timeout", settings.write_timeout_ms),
            retries=_count(values, "retries", settings.retries, 0, 20),
            connections=_count(values, "connections", settings.connections, 1, 10_000),
            tls_verify=values.get("tls_verify", True),
            tls_ca=paths.get("tls_ca"),
            tls_cert=paths.get("tls_cert"),
            tls_key=paths.get("tls_key"),
        )
        _check_tls(settings, paths, "tls_verify" in values)
        return settings

    @property
    def where(self) -> str:
        """The address without user and password, safe to log."""
        if self.mode == "memory":
            return "memory://"
        if self.is_socket:
            return f"unix://{self.hosts[0][0]}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls else "redis"
        scheme += "" if self.mode == "server" else f"+{self.mode}"
        hosts = ",".join(host_and_port(host, port) for host, port in self.hosts)
        path = f"/{self.service}" if self.service else ""
        return f"{scheme}://{hosts}{path}" + (f"/{self.db}" if self.db else "")

    @property
    def is_socket(self) -> bool:
        """Whether the server is on this host, behind a Unix socket."""
        return bool(self.hosts) and is_socket(self.hosts[0])

    @property
    def plain_url(self) -> str:
        """The URL of a single server without TLS, including its password: never log it."""
        secret = f"{quote(self.user or '', safe='')}:{quote(self.password or '', safe='')}@"
        login = secret if self.password else ""
        if self.is_socket:
            return f"unix://{login}{quote(self.hosts[0][0])}?db={self.db}"
        return f"redis://{login}{host_and_port(*self.hosts[0])}/{self.db}"

    def for_writing(self) -> OnlineSettings:
        """Return these settings with ``write_timeout_ms`` for reads too: a writer prefers late to
        failed."""
        return replace(self, timeout_ms=max(self.timeout_ms, self.write_timeout_ms))


def is_socket(address: tuple[str, int]) -> bool:
    """Return True if an address is the path of a Unix socket: no host begins with a slash."""
    return address[0].startswith("/")


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address; of a Unix socket its path."""
    if is_socket((host, port)):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def from_url(url: str) -> OnlineSettings:
    """Return the settings from an address alone.

    Raises
    ------
    ConfigurationError
        For an address that is not supported.
    """
    scheme, separator, rest = url.partition("://")
    match = re.fullmatch(r"(redis|rediss)(?:\+(cluster|sentinel))?", scheme)
    if scheme == "memory" and separator and not rest:
        return OnlineSettings(mode="memory", hosts=())
    if scheme == "unix" and separator:
        return _socket(url, rest)
    if match is None or not separator:
        raise _invalid(url, f"expected {FORMS}")
    mode: Mode = match[2] or "server"  # type: ignore[assignment]
    if "?" in rest:
        raise _invalid(url, "query options are not supported; use the settings of [online]")
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    user, password = _login(credentials)
    service, db = _path(url, mode, path)
    return OnlineSettings(
        mode=mode,
        hosts=_hosts(url, mode, hosts),
        db=db,
        service=service,
        tls=match[1] == "rediss",
        user=user,
        password=password,
    )


def _socket(url: str, rest: str) -> OnlineSettings:
    """Return the server behind a Unix socket, in the form of redis-py."""
    place, _, query = rest.partition("?")
    login, slash, path = place.partition("/")
    credentials, at, other = login.rpartition("@")
    db = re.fullmatch(r"(?:db=([0-9]{1,9}))?", query)
    if other or (login and not at) or not slash or not path:
        raise _invalid(url, f"no path of a socket; expected {FORMS}")
    if db is None:
        raise _invalid(url, "expected no option but ?db=N; use the settings of [online]")
    user, password = _login(credentials)
    return OnlineSettings(
        hosts=(("/" + unquote(path), 0),), db=int(db[1] or 0), user=user, password=password
    )


def _login(credentials: str) -> tuple[str | None, str | None]:
    """Return user and password in front of an ``@``."""
    user, _, password = credentials.partition(":")
    return unquote(user) or None, unquote(password) or None


def _hosts(url: str, mode: Mode, text: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:@/\[\]\s]+))(?::([0-9]{1,5}))?", part)
        port = _DEFAULT_PORTS[mode] if match is None or match[3] is None else int(match[3])
        if match is None or not 0 < port < 65_536:
            raise _invalid(url, f"{part!r} is not host[:port]; expected {FORMS}")
        hosts.append((match[1] or match[2], port))
    if mode == "server" and len(hosts) > 1:
        raise _invalid(
            url, f"{len(hosts)} hosts; several servers are redis+cluster:// or redis+sentinel://"
        )
    return tuple(hosts)


def _path(url: str, mode: Mode, path: str) -> tuple[str, int]:
    """Return the sentinels' service name and the database number."""
    service = ""
    if mode == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise _invalid(url, "no service name; expected redis+sentinel://host:port,.../service")
    if path and not path.isdecimal():
        raise _invalid(url, f"{path!r} is not a database number")
    db = int(path or 0)
    if mode == "cluster" and db:
        raise _invalid(url, f"database {db}; a cluster has only database 0")
    return unquote(service), db


def _invalid(url: str, why: str) -> ConfigurationError:
    # up to the last @: an unescaped password may contain any character
    scheme, separator, rest = url.partition("://")
    head, at, tail = (rest if separator else url).rpartition("@")
    secret = head.rpartition(":")[2]
    if at and secret:
        why = why.replace(secret, "***").replace(head, "***")
    tail, mark, _ = tail.partition("?")  # redis-py takes a password there, too
    tail += mark and "?***"
    shown = f"{scheme}{separator}{'***@' if at else ''}{tail}" if separator or not at else "***"
    return ConfigurationError(f"online store {shown!r}: {why}")


def _duration(values: Mapping[str, Any], name: str, default: int) -> int:
    if name not in values:
        return default
    try:
        return parse_duration(values[name])
    except DefinitionError as error:
        raise ConfigurationError(f"[online] {name}: {error}") from error


def _count(values: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    count: int = values.get(name, default)
    if not least <= count <= most:
        raise ConfigurationError(f"[online] {name} = {count}; expected {least} to {most}")
    return count


def _check_tls(settings: OnlineSettings, paths: Mapping[str, Path], verify_given: bool) -> None:
    given = [*paths, *(["tls_verify"] if verify_given else [])]
    if given and not settings.tls and settings.mode != "memory":
        raise ConfigurationError(
            f"[online] {given[0]} requires TLS, but the address is {settings.where}: use rediss "
            "instead of redis, or remove it"
        )
    if settings.tls_key is not None and settings.tls_cert is None:
        raise ConfigurationError("[online] tls_key requires tls_cert, the certificate of that key")
    for name, path in paths.items():
        if not path.is_file():
            raise ConfigurationError(f"[online] {name}: file not found: {path}")
