"""Connection settings of Kafka, from ``[kafka]`` and the environment, validated."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paimon_features.core.errors import ConfigurationError, DefinitionError
from paimon_features.core.windows import parse_duration

PASSWORD_VARIABLE = "PAIMON_FEATURES_KAFKA_PASSWORD"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
DISCOVERY_MS = 60_000
NEW_TOPIC_S = 3.0
"""Until an unknown topic is an error: brokers learn of one some time after it was created."""
_LARGEST_SECRET = 4_096
_SERVER = re.compile(r"(?:[^\s:/]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach the brokers.

    ``brokers`` is a comma-separated list of ``host:port``, None where a command names it.
    ``tls_ca``, ``tls_cert`` and ``tls_key`` are PEM files: of the authorities that broker
    certificates are checked against (by default those that Java trusts), and the certificate and
    unencrypted PKCS #8 key of this client. With ``user``, the client logs in by ``mechanism``.
    ``discovery_ms`` is how often a running job looks for new partitions.

    >>> settings = KafkaSettings.of(
    ...     {"user": "ingest", "tls": True}, Path("."), {"PAIMON_FEATURES_KAFKA_PASSWORD": "pw"}
    ... )
    >>> settings.protocol, settings.mechanism, "pw" in repr(settings)
    ('SASL_SSL', 'SCRAM-SHA-512', False)
    """

    brokers: str | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    mechanism: str = MECHANISMS[0]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    discovery_ms: int = DISCOVERY_MS

    @property
    def protocol(self) -> str:
        """The security protocol, in Kafka's words."""
        return ("SASL_" if self.user else "") + ("SSL" if self.tls else "PLAINTEXT")

    @classmethod
    def of(
        cls, values: Mapping[str, Any], root: Path, environ: Mapping[str, str] = os.environ
    ) -> KafkaSettings:
        """Read ``[kafka]``; relative paths begin at ``root``.

        The password is in PAIMON_FEATURES_KAFKA_PASSWORD, else in the file ``password_file``,
        whose last line break is not part of it.

        Raises
        ------
        ConfigurationError
            For an invalid value, a missing file, or a user without a password.
        """
        files = {
            name: _existing(name, root / values[name])
            for name in ("tls_ca", "tls_cert", "tls_key")
            if name in values
        }
        if files and not values.get("tls"):
            raise ConfigurationError(f"[kafka] {next(iter(files))} requires tls = true")
        if ("tls_cert" in files) != ("tls_key" in files):
            raise ConfigurationError("[kafka] tls_cert and tls_key belong together")
        if "brokers" in values:
            check_brokers("[kafka] brokers =", values["brokers"])
        mechanism = values.get("mechanism", MECHANISMS[0])
        if mechanism not in MECHANISMS:
            raise ConfigurationError(
                f"[kafka] mechanism = {mechanism!r}; expected one of: {', '.join(MECHANISMS)}"
            )
        return cls(
            brokers=values.get("brokers"),
            tls=values.get("tls", False),
            **files,
            mechanism=mechanism,
            user=values.get("user"),
            password=_password(values, root, environ),
            discovery_ms=_discovery_ms(values),
        )


def check_brokers(what: str, servers: str) -> None:
    """Raise ConfigurationError, beginning with ``what``, unless each server is ``host:port``."""
    for server in servers.split(","):
        if not _SERVER.fullmatch(server):
            raise ConfigurationError(
                f"{what} {servers}: {server!r} is not host:port; expected for example "
                "broker-1:9092,broker-2:9092"
            )


def _password(values: Mapping[str, Any], root: Path, environ: Mapping[str, str]) -> str | None:
    user = values.get("user")
    if user is None:
        if "password_file" in values or "mechanism" in values:
            raise ConfigurationError("[kafka] mechanism and password_file require user")
        return None
    password = environ.get(PASSWORD_VARIABLE)
    if not password and "password_file" in values:
        path = _existing("password_file", root / values["password_file"])
        try:
            with path.open(encoding="utf-8") as file:
                password = file.read(_LARGEST_SECRET + 1).removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"[kafka] password_file {path}: it cannot be read as UTF-8 text "
                f"({type(error).__name__})"
            ) from None
    if not password:
        raise ConfigurationError(
            f"[kafka] user {user!r} has no password; set {PASSWORD_VARIABLE} in the environment, "
            "or password_file"
        )
    # a line break would begin another entry of the file that Flink reads
    if len(password) > _LARGEST_SECRET or any(ord(c) < 32 for c in password + user):
        raise ConfigurationError(
            f"[kafka] user and password: expected at most {_LARGEST_SECRET} characters of one line"
        )
    return password


def _existing(name: str, path: Path) -> Path:
    file = path.absolute()  # links stay, as in config: a Secret is replaced behind them
    if not file.is_file():
        raise ConfigurationError(f"[kafka] {name}: no such file: {file}")
    return file


def _discovery_ms(values: Mapping[str, Any]) -> int:
    if "partition_discovery" not in values:
        return DISCOVERY_MS
    try:
        return parse_duration(values["partition_discovery"])
    except DefinitionError as error:
        raise ConfigurationError(f"[kafka] partition_discovery: {error}") from error
