"""Parts that all pods share: labels, users, volumes, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paimon_features.config import ProjectConfig
from paimon_features.definitions import Definitions
from paimon_features.deploy.checks import is_remote
from paimon_features.deploy.names import object_name
from paimon_features.deploy.project_files import PROJECT, ProjectFiles, in_pod
from paimon_features.deploy.settings import DeploySettings
from paimon_features.online.settings import PASSWORD_VARIABLE, URL_VARIABLE

USER = 10001
"""The user of the images, who has no rights."""
SERVER_PORT, MONITOR_PORT, REST_PORT = 8080, 9464, 8081
"""Feature server, materializer, Flink's REST interface."""
TLS_KEYS = {"tls_ca": "ca.crt", "tls_cert": "tls.crt", "tls_key": "tls.key"}
"""The entry of the Secret for each setting of ``[online]``; the names of cert-manager."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Deployment:
    """A project, its definitions and files, and the settings with which it is deployed."""

    config: ProjectConfig
    definitions: Definitions
    settings: DeploySettings
    files: ProjectFiles

    def name(self, *parts: str) -> str:
        """The name of an object."""
        return object_name(self.config.name, *parts)

    def labels(self, component: str) -> Json:
        """The labels of an object and its pods."""
        return {**self.instance, "app.kubernetes.io/component": component}

    @property
    def instance(self) -> Json:
        """The labels of all objects of the project."""
        return {
            "app.kubernetes.io/name": "paimon-features",
            "app.kubernetes.io/instance": object_name(self.config.name),
        }

    def metadata(self, component: str, *name: str) -> Json:
        """The metadata of an object."""
        namespace = self.settings.namespace
        return {
            "name": self.name(*(name or (component,))),
            **({"namespace": namespace} if namespace else {}),
            "labels": self.labels(component),
        }

    @property
    def state_path(self) -> PurePosixPath:
        """The state folder of the project in pods."""
        return in_pod(self.config, self.config.state_dir)

    # -- environment ----------------------------------------------------------------------------

    def base_variables(self) -> list[Json]:
        """A writable home: the root file system is read-only."""
        return [{"name": "HOME", "value": "/tmp"}]

    def online_variables(self) -> list[Json]:
        """The address and the password of the online store, from a Secret."""
        secret = self.settings.online_secret or self.name("online")
        url = {"name": secret, "key": "url"}
        password = {"name": secret, "key": "password", "optional": True}
        return [
            {"name": URL_VARIABLE, "valueFrom": {"secretKeyRef": url}},
            {"name": PASSWORD_VARIABLE, "valueFrom": {"secretKeyRef": password}},
        ]

    def lake_variables(self) -> list[Json]:
        """Entries of ``envFrom``: the credentials of an object store, if any."""
        secret = self.settings.lake_secret
        return [] if secret is None else [{"secretRef": {"name": secret}}]

    # -- volumes --------------------------------------------------------------------------------

    def volumes(self, *, lake: bool, tokens: bool = False, tls: bool = False) -> list[Json]:
        """The volumes of a pod."""
        found = [self.files.volume(), {"name": "tmp", "emptyDir": {}}]
        if lake:
            claims = {name: _claim(claim) for name, claim, _, _ in self._claims()}
            found += [{"name": name, **claim} for name, claim in claims.items()]
        if tokens and self.config.serve.tokens is not None:
            secret = self.settings.tokens_secret or self.name("tokens")
            found.append({"name": "tokens", "secret": {"secretName": secret}})
        if tls and self._tls():
            secret = self.settings.tls_secret or self.name("online-tls")
            found.append({"name": "tls", "secret": {"secretName": secret}})
        return found

    def mounts(self, *, lake: bool, tokens: bool = False, tls: bool = False) -> list[Json]:
        """The mounts of a container with these volumes."""
        found = [*self.files.mounts(), {"name": "tmp", "mountPath": "/tmp"}]
        if lake:
            found += [
                {"name": name, "mountPath": str(path), "subPath": folder}
                for name, _, path, folder in self._claims()
            ]
        tokens_file = self.config.serve.tokens
        if tokens and tokens_file is not None:
            path = in_pod(self.config, tokens_file)
            found.append(_file("tokens", path, path.name))
        if tls:
            found += [_file("tls", path, TLS_KEYS[name]) for name, path in self._tls().items()]
        return found

    def _claims(self) -> list[tuple[str, str, PurePosixPath, str]]:
        """Volume, claim, path in the pod, and folder of the volume."""
        config, settings = self.config, self.settings
        state = settings.state_claim or settings.warehouse_claim
        assert state is not None
        # one volume for one claim: a pod cannot mount it under two names
        volume = "state" if settings.state_claim else "warehouse"
        found = [(volume, state, self.state_path, "state")]
        if not is_remote(config):
            assert settings.warehouse_claim is not None
            lake = ("warehouse", settings.warehouse_claim, in_pod(config, config.warehouse), "lake")
            found.insert(0, lake)
        elif config.side_folder is not None:
            found.append((volume, state, in_pod(config, config.side_folder), "side"))
        return found

    def _tls(self) -> dict[str, PurePosixPath]:
        online = self.config.online
        return {
            name: PROJECT / str(online[name]) if not str(online[name]).startswith("/")
            else PurePosixPath(str(online[name]))
            for name in TLS_KEYS
            if name in online
        }  # fmt: skip


def pod_security() -> Json:
    """The security context of a pod: the user of the images, and volumes that it may write."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """The security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(cpu: str, memory: str, limit: str) -> Json:
    """Requests, and a limit of memory; a limit of CPU time would only delay requests."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}


def http_get(path: str, port: str = "http", **limits: int) -> Json:
    """A probe."""
    return {"httpGet": {"path": path, "port": port}, **limits}


def scraped(port: int) -> Json:
    """Annotations by which a common configuration of Prometheus finds a pod."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def container(
    name: str, image: str, arguments: Sequence[str], mounts: list[Json], **more: Any
) -> Json:
    """A container of an image of ours; its entry point is ``paimon-features``."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments, "--project", str(PROJECT)],
        **more,
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _claim(name: str) -> Mapping[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def _file(volume: str, path: PurePosixPath, key: str) -> Json:
    return {"name": volume, "mountPath": str(path), "subPath": key, "readOnly": True}
