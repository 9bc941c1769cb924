"""What cannot run on Kubernetes, or would publish a secret, is refused before it is rendered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.configuration.kafka_settings import (
    PASSWORD_VARIABLE as KAFKA_PASSWORD_VARIABLE,
)
from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.configuration.project_config import FILES_OF_HOSTS, ProjectConfig
from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.definitions import Definitions
from paimon_features.lake.storage.filesystems import check_warehouse
from paimon_features.lake.storage.rest_catalog import TOKEN_VARIABLE
from paimon_features.online.store import OnlineSettings
from paimon_features.online.store.settings import PASSWORD_VARIABLE as ONLINE_PASSWORD_VARIABLE
from paimon_features.project.deploy.project_files import PROJECT, ProjectFiles, in_pod
from paimon_features.project.deploy.settings import DeploySettings

_SECRET_OPTION = re.compile(r"secret|password|token|access.?key|credential", re.I)


def check_project(
    config: ProjectConfig,
    definitions: Definitions,
    settings: DeploySettings,
    files: ProjectFiles,
) -> None:
    """Check that pods can run the project with these settings.

    Raises
    ------
    ConfigurationError
        For a warehouse or state that is a folder of this host, an online store in memory, a
        server that would be open to everyone, a secret in ``paimon-features.toml``, a file that
        pods would not have, or a setting that no command accepts.
    UnknownNameError
        For a topic of a source that is not defined.
    """
    _check_no_secrets(config)
    _check_catalog(config, settings)
    _check_folders(config, settings)
    _check_values(config)
    _check_files(config, files)
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
    for topic in settings.topics:
        if topic.source not in definitions.sources:
            raise UnknownNameError.of("source", topic.source, definitions.sources)


def is_remote(config: ProjectConfig) -> bool:
    """Return True if the warehouse is an object store or HDFS, not a folder."""
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
            f"the warehouse {config.warehouse} is not a folder; --warehouse-volume does not apply"
        )
    if is_remote(config) and settings.state_claim is None:
        raise ConfigurationError(
            f"the state of the project is in {config.state_dir}, a folder of this host: pass "
            "--state-volume CLAIM, a PersistentVolumeClaim that all pods can mount (ReadWriteMany)"
        )


def _check_values(config: ProjectConfig) -> None:
    """Check settings as the commands do that connect: 'plan', 'ingest', 'serve'."""
    check_warehouse(config.warehouse, config.lake_options, config.side_folder)
    for source, values in config.inputs.items():
        InputSettings.of(source, values)
    # files and passwords come from Secrets
    password = {ONLINE_PASSWORD_VARIABLE: "from a Secret", KAFKA_PASSWORD_VARIABLE: "from a Secret"}
    OnlineSettings.of(_without_files("online", config.online), environ=password)
    KafkaSettings.of(_without_files("kafka", config.kafka), config.root, environ=password)


def _without_files(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in FILES_OF_HOSTS[table]}


def _check_files(config: ProjectConfig, files: ProjectFiles) -> None:
    """Check that pods have what is neither in a Secret nor in a folder of its own."""
    needed = {
        "[serve.oidc] tls_ca": None if config.serve.oidc is None else config.serve.oidc.tls_ca,
        "[serve] bundle": config.serve.bundle if config.serve.bundle != "online" else None,
    }
    for where, path in needed.items():
        if path is None:
            continue
        name = in_pod(config, path)
        if not name.is_relative_to(PROJECT) or str(name.relative_to(PROJECT)) not in files.contents:
            raise ConfigurationError(
                f"{where} is {path}, which pods do not have: put it into the project's folder and "
                "pass it with --file"
                + (", or set [serve] bundle = 'online'" if where.endswith("bundle") else "")
            )
    if config.openlineage is not None and "://" not in config.openlineage:
        raise ConfigurationError(
            f"[lineage] openlineage is {config.openlineage}, a file of one host, and pods have "
            "none that lasts: name the address of a server, or remove it"
        )


def _check_catalog(config: ProjectConfig, settings: DeploySettings) -> None:
    if config.catalog is not None and settings.lake_secret is None:
        raise ConfigurationError(
            f"the REST catalog {config.catalog.uri} requires a token: name a Secret with "
            f"the entry {TOKEN_VARIABLE} by --set lake_secret"
        )


def _check_no_secrets(config: ProjectConfig) -> None:
    """Raise for secrets in the configuration, whose ConfigMap many may read."""
    addresses = {
        "[online] url": str(config.online["url"]),
        "[lake] warehouse": config.warehouse,
        "[flink] wire": config.flink.wire or "",
        "[models] mlflow": config.mlflow or "",
        "[lineage] openlineage": config.openlineage or "",
        "[lake.catalog] uri": "" if config.catalog is None else config.catalog.uri,
    }
    for where, address in addresses.items():
        if urlsplit(address).password is not None or redact(address, {}) != address:
            raise ConfigurationError(
                f"{where} contains a password, and paimon-features.toml becomes a ConfigMap: "
                "remove it there; the online store's URL and password come from --set online_secret"
            )
    for name in config.lake_options:
        if _SECRET_OPTION.search(name):
            raise ConfigurationError(
                f"[lake.options] {name} is a secret, and paimon-features.toml becomes a "
                "ConfigMap: remove it there; --set lake_secret names a Secret whose entries become "
                "environment variables, such as AWS_ACCESS_KEY_ID"
            )
