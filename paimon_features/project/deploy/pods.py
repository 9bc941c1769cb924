"""Parts that all pods share: labels, users, volumes, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.definitions import Definitions
from paimon_features.project.deploy.checks import is_remote
from paimon_features.project.deploy.names import object_name
from paimon_features.project.deploy.project_files import PROJECT, ProjectFiles, in_pod
from paimon_features.project.deploy.secrets import SecretFolder, secret_folders
from paimon_features.project.deploy.settings import DeploySettings

USER = 10001
"""The user of the images, who has no rights."""
SERVER_PORT, MONITOR_PORT, REST_PORT = 8080, 9464, 8081
"""Feature server, materializer, Flink's REST interface."""
SPOOLS = ("request_log", "prediction_log")
"""The folders of ``[serve]`` in which a server collects rows for ``request-log``."""

Json = dict[str, Any]
JsonField = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Uses:
    """What a container mounts: the lake with the state, folders of Secrets, folders of logs."""

    lake: bool = False
    secrets: tuple[str, ...] = ()
    spools: bool = False
    audit: bool = False


LAKE = Uses(lake=True)


@dataclass(frozen=True)
class Deployment:
    """A project, its definitions and files, and the settings with which it is deployed."""

    config: ProjectConfig
    definitions: Definitions
    settings: DeploySettings
    files: ProjectFiles

    def name(self, *parts: str) -> str:
        """Return the name of an object."""
        return object_name(self.config.name, *parts)

    def labels(self, component: str) -> Json:
        """Return the labels of an object and its pods."""
        return {**self.instance, "app.kubernetes.io/component": component}

    @property
    def instance(self) -> Json:
        """The labels of all objects of the project."""
        return {
            "app.kubernetes.io/name": "paimon-features",
            "app.kubernetes.io/instance": object_name(self.config.name),
        }

    def metadata(self, component: str, *name: str) -> Json:
        """Return the metadata of an object."""
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
        """Return a writable home: the root file system is read-only."""
        return [{"name": "HOME", "value": "/tmp"}]

    def lake_variables(self) -> list[Json]:
        """Entries of ``envFrom``: the credentials of an object store, if any."""
        secret = self.settings.lake_secret
        return [] if secret is None else [{"secretRef": {"name": secret}}]

    # -- volumes --------------------------------------------------------------------------------

    def secrets(self, *names: str) -> list[SecretFolder]:
        """Return the Secrets with these names that the project's settings need."""
        return [f for f in secret_folders(self.config, self.settings) if f.name in names]

    def volumes(self, uses: Uses) -> list[Json]:
        """Return the volumes of a pod."""
        volumes = [self.files.volume(), {"name": "tmp", "emptyDir": {}}]
        claims = {name: _claim(claim) for name, claim, _, _ in self._claims(uses)}
        volumes += [{"name": name, **claim} for name, claim in claims.items()]
        volumes += [folder.volume() for folder in self.secrets(*uses.secrets)]
        if uses.spools:
            volumes += [{"name": _label(name), "emptyDir": {}} for name in self.spools()]
        return volumes

    def mounts(self, uses: Uses) -> list[Json]:
        """Return the mounts of a container with these volumes."""
        mounts = [*self.files.mounts(), {"name": "tmp", "mountPath": "/tmp"}]
        mounts += [
            {"name": name, "mountPath": str(path), "subPath": folder}
            for name, _, path, folder in self._claims(uses)
        ]
        mounts += [folder.mount() for folder in self.secrets(*uses.secrets)]
        if uses.spools:
            mounts += [
                {"name": _label(name), "mountPath": str(path)}
                for name, path in self.spools().items()
            ]
        return mounts

    def variables(self, uses: Uses) -> list[Json]:
        """Return the variables of a container with these volumes: a writable home, paths of
        Secrets."""
        variables = self.base_variables()
        for folder in self.secrets(*uses.secrets):
            variables += folder.variables()
        return variables

    def spools(self) -> dict[str, PurePosixPath]:
        """Return the folders of logs in a pod, by setting."""
        folders: dict[PurePosixPath, str] = {}  # both logs can have one folder
        for name in SPOOLS:
            path = getattr(self.config.serve, name)
            if path is not None:
                folders.setdefault(in_pod(self.config, path), name)
        return {name: path for path, name in folders.items()}

    def _claims(self, uses: Uses) -> list[tuple[str, str, PurePosixPath, str]]:
        """Volume, claim, path in the pod, and folder of the volume."""
        config, settings = self.config, self.settings
        state = settings.state_claim or settings.warehouse_claim
        assert state is not None
        # one volume for one claim: a pod cannot mount it under two names
        volume = "state" if settings.state_claim else "warehouse"
        claims = []
        if uses.lake:
            claims.append((volume, state, self.state_path, "state"))
            if not is_remote(config):
                assert settings.warehouse_claim is not None
                path = in_pod(config, config.warehouse)
                claims.insert(0, ("warehouse", settings.warehouse_claim, path, "lake"))
            elif config.side_folder is not None:
                claims.append((volume, state, in_pod(config, config.side_folder), "side"))
        if config.serve.audit is not None and (uses.lake or uses.audit):
            claims.append((volume, state, in_pod(config, config.serve.audit), "audit"))
        return claims


def pod_security() -> Json:
    """Return the security context of a pod: the user of the images, and volumes that it may
    write."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(cpu: str, memory: str, limit: str) -> Json:
    """Return requests, and a limit of memory; a limit of CPU time would only delay requests."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}


def http_get(path: str, port: str = "http", **limits: int) -> Json:
    """Return a probe."""
    return {"httpGet": {"path": path, "port": port}, **limits}


def scraped(port: int) -> Json:
    """Annotations by which a common configuration of Prometheus finds a pod."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def container(
    name: str, image: str, arguments: Sequence[str], mounts: list[Json], **fields: JsonField
) -> Json:
    """Return a container of an image of ours; its entry point is ``paimon-features``.

    ``fields`` are further ones of the container, as Kubernetes names them.
    """
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments, "--project", str(PROJECT)],
        **fields,
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _claim(name: str) -> Mapping[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def _label(setting: str) -> str:
    return setting.replace("_", "-")
