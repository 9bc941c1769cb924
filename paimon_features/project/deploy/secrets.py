"""Files and variables of pods that come from Secrets.

A Secret is mounted as a folder, which Kubernetes updates when the Secret changes: a deleted token
or a renewed certificate takes effect without a restart. A single file mounted by ``subPath`` is
never updated. The project names these files by other paths, so variables name the mounted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paimon_features.core.configuration.kafka_settings import (
    PASSWORD_VARIABLE as KAFKA_PASSWORD_VARIABLE,
)
from paimon_features.core.configuration.project_config import (
    SALT_VARIABLE,
    ProjectConfig,
    file_variable,
)
from paimon_features.online.store.settings import (
    PASSWORD_VARIABLE,
    SENTINEL_PASSWORD_VARIABLE,
    URL_VARIABLE,
)
from paimon_features.project.deploy.names import object_name
from paimon_features.project.deploy.settings import DeploySettings

SECRETS = PurePosixPath("/secrets")
TLS_KEYS = {"tls_ca": "ca.crt", "tls_cert": "tls.crt", "tls_key": "tls.key"}
"""The entry of a Secret for each setting ``tls_...``; the names of cert-manager."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SecretFolder:
    """A Secret that pods mount as a folder; ``files`` are its entries, by the settings' variables.

    >>> folder = SecretFolder("tokens", "shop-tokens", {"PAIMON_FEATURES_SERVE_TOKENS": "t.toml"})
    >>> folder.variables()
    [{'name': 'PAIMON_FEATURES_SERVE_TOKENS', 'value': '/secrets/tokens/t.toml'}]
    """

    name: str
    secret: str
    files: Mapping[str, str]

    def volume(self) -> Json:
        """Return the volume of a pod."""
        return {"name": self.name, "secret": {"secretName": self.secret}}

    def mount(self) -> Json:
        """Return the mount of a container."""
        return {"name": self.name, "mountPath": str(SECRETS / self.name), "readOnly": True}

    def variables(self) -> list[Json]:
        """Return the variables that name the files."""
        return [
            {"name": variable, "value": str(SECRETS / self.name / key)}
            for variable, key in self.files.items()
        ]


def secret_folders(config: ProjectConfig, settings: DeploySettings) -> Iterator[SecretFolder]:
    """Yield the Secrets with files that the project's settings name: tokens, certificates."""
    tokens = config.serve.tokens
    if tokens is not None:
        secret = settings.tokens_secret or object_name(config.name, "tokens")
        yield SecretFolder("tokens", secret, {file_variable("serve", "tokens"): tokens.name})
    for name, table, given, values in (
        ("online-tls", "online", settings.tls_secret, config.online),
        ("kafka-tls", "kafka", settings.kafka_secret, config.kafka),
    ):
        files = {file_variable(table, key): file for key, file in TLS_KEYS.items() if key in values}
        if files:
            default = object_name(config.name, "kafka" if table == "kafka" else name)
            yield SecretFolder(name, given or default, files)


def online_variables(config: ProjectConfig, settings: DeploySettings) -> list[Json]:
    """Return the variables with the address and the passwords of the online store."""
    secret = settings.online_secret or object_name(config.name, "online")
    return [
        _from_secret(URL_VARIABLE, secret, "url"),
        _from_secret(PASSWORD_VARIABLE, secret, "password", optional=True),
        # of Redis Sentinel, whose servers have passwords of their own
        _from_secret(SENTINEL_PASSWORD_VARIABLE, secret, "sentinel-password", optional=True),
    ]


def kafka_variables(config: ProjectConfig, settings: DeploySettings) -> list[Json]:
    """Return the variable with the password of the user of ``[kafka]``, if there is one."""
    if "user" not in config.kafka:
        return []
    secret = settings.kafka_secret or object_name(config.name, "kafka")
    return [_from_secret(KAFKA_PASSWORD_VARIABLE, secret, "password")]


def salt_variables(config: ProjectConfig, settings: DeploySettings) -> list[Json]:
    """Return the variable with the salt by which logs hash entities, if they do."""
    serve = config.serve
    hashes = (serve.request_log is not None and serve.request_log_hash) or (
        serve.prediction_log is not None and serve.prediction_log_hash
    )
    if not hashes:
        return []
    secret = settings.log_secret or object_name(config.name, "request-log")
    return [_from_secret(SALT_VARIABLE, secret, "salt")]


def _from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> Json:
    reference: Json = {"name": secret, "key": key, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}
