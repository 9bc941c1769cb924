"""What cannot run on Kubernetes, or would publish a secret, is refused before it is rendered."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from paimon_features.config import ProjectConfig
from paimon_features.definitions import Definitions
from paimon_features.deploy.settings import DeploySettings
from paimon_features.errors import ConfigurationError, UnknownNameError
from paimon_features.redaction import redact
from paimon_features.tables.storage.rest_catalog import TOKEN_VARIABLE

_SECRET_OPTION = re.compile(r"secret|password|token|access.?key|credential", re.I)


def check_project(
    config: ProjectConfig, definitions: Definitions, settings: DeploySettings
) -> None:
    """Check that pods can run the project with these settings.

    Raises
    ------
    ConfigurationError
        For a warehouse or state that is a folder of this host, an online store in memory, a
        server that would be open to everyone, or a secret in ``paimon-features.toml``.
    UnknownNameError
        For a topic of a source that is not defined.
    """
    _check_no_secrets(config)
    _check_catalog(config, settings)
    _check_folders(config, settings)
    if str(config.online["url"]).startswith("memory:"):
        raise ConfigurationError(
            "[online] url = 'memory://': that store is the memory of one process, and pods share "
            "nothing; use a server of the Redis protocol"
        )
    if config.serve.tokens is None and not settings.may_be_open:
        raise ConfigurationError(
            "the feature server has no tokens, so everyone who reaches it could read every "
            "feature: set [serve] tokens (its file comes from a Secret), or pass --open where the "
            "NetworkPolicy is enough"
        )
    for name in ("request_log", "prediction_log"):
        if getattr(config.serve, name) is not None:
            raise ConfigurationError(
                f"[serve] {name} is a folder of one host, and pods have none that lasts: remove "
                "it for this deployment"
            )
    for topic in settings.topics:
        if topic.source not in definitions.sources:
            raise UnknownNameError.of("source", topic.source, definitions.sources)


def is_remote(config: ProjectConfig) -> bool:
    """Whether the warehouse is an object store or HDFS, not a folder."""
    return "://" in config.warehouse


def _check_folders(config: ProjectConfig, settings: DeploySettings) -> None:
    if not is_remote(config) and settings.warehouse_claim is None:
        raise ConfigurationError(
            f"the warehouse {config.warehouse} is a folder of this host, which pods do not see: "
            "pass --warehouse-volume CLAIM, a PersistentVolumeClaim that all pods can mount "
            "(ReadWriteMany), or use a warehouse on an object store"
        )
    if is_remote(config) and settings.warehouse_claim is not None:
        raise ConfigurationError(
            f"the warehouse {config.warehouse} is no folder; --warehouse-volume does not apply"
        )
    if is_remote(config) and settings.state_claim is None:
        raise ConfigurationError(
            f"the state of the project is in {config.state_dir}, a folder of this host: pass "
            "--state-volume CLAIM, a PersistentVolumeClaim that all pods can mount (ReadWriteMany)"
        )


def _check_catalog(config: ProjectConfig, settings: DeploySettings) -> None:
    if config.catalog is not None and settings.lake_secret is None:
        raise ConfigurationError(
            f"the REST catalog {config.catalog.uri} requires a token: pass --lake-secret SECRET, "
            f"with an entry {TOKEN_VARIABLE}"
        )


def _check_no_secrets(config: ProjectConfig) -> None:
    """The configuration is mounted from a ConfigMap, which many may read."""
    addresses = {
        "[online] url": str(config.online["url"]),
        "[lake] warehouse": config.warehouse,
        "[flink] wire": config.flink.wire or "",
        "[lake.catalog] uri": "" if config.catalog is None else config.catalog.uri,
    }
    for where, address in addresses.items():
        if urlsplit(address).password is not None or redact(address, {}) != address:
            raise ConfigurationError(
                f"{where} contains a password, and paimon-features.toml becomes a ConfigMap: "
                "remove it there; the online store's URL and password come from --online-secret"
            )
    for name in config.lake_options:
        if _SECRET_OPTION.search(name):
            raise ConfigurationError(
                f"[lake.options] {name} is a secret, and paimon-features.toml becomes a "
                "ConfigMap: remove it there; --lake-secret names a Secret whose entries become "
                "environment variables, such as AWS_ACCESS_KEY_ID"
            )
