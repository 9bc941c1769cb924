"""All documents of a project, by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import ConfigurationError
from paimon_features.definitions import Definitions
from paimon_features.project.deploy.checks import check_project
from paimon_features.project.deploy.flink_jobs import flink_jobs, flink_session
from paimon_features.project.deploy.maintenance import apply_job, maintenance
from paimon_features.project.deploy.materializer import materializer
from paimon_features.project.deploy.network import network
from paimon_features.project.deploy.pods import Deployment, Json
from paimon_features.project.deploy.project_files import ProjectFiles
from paimon_features.project.deploy.serving import serving
from paimon_features.project.deploy.settings import DeploySettings
from paimon_features.project.deploy.yaml_text import to_yaml

HEADER = "# Written by 'paimon-features deploy render'; change it by an overlay, not here.\n"


@dataclass(frozen=True, slots=True)
class Manifests:
    """Documents by file name; ``kustomization.yaml`` lists the files."""

    files: Mapping[str, tuple[Json, ...]]

    @property
    def documents(self) -> tuple[Json, ...]:
        """All documents that a cluster takes, in the order of the files."""
        files = (of_file for name, of_file in self.files.items() if name != "kustomization.yaml")
        return tuple(document for documents in files for document in documents)

    def to_text(self) -> str:
        """Return all documents as one YAML stream, for ``kubectl apply -f -``."""
        return HEADER + to_yaml(self.documents)

    def write(self, folder: Path) -> list[Path]:
        """Write the files into a folder; returns their paths.

        Files of other names in the folder stay.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, documents in self.files.items():
            path = folder / name
            path.write_text(HEADER + to_yaml(documents), "utf-8")
            written.append(path)
        return written


def render(
    config: ProjectConfig,
    definitions: Definitions,
    files: ProjectFiles,
    settings: DeploySettings,
) -> Manifests:
    """Return the manifests of a project.

    Raises
    ------
    ConfigurationError, UnknownNameError
        As ``check_project``.
    """
    check_project(config, definitions, settings, files)
    deployment = Deployment(config, definitions, settings, files)
    parts = {
        "project.yaml": [files.config_map(deployment.metadata("project"))],
        "apply.yaml": apply_job(deployment),
        "flink.yaml": flink_jobs(deployment),
        "session.yaml": flink_session(deployment),
        "materializer.yaml": materializer(deployment),
        "serving.yaml": serving(deployment),
        "maintenance.yaml": maintenance(deployment),
        "network.yaml": network(deployment),
    }
    parts = {name: documents for name, documents in parts.items() if documents}
    _check_names(parts)
    kustomization: Json = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(parts),
    }
    return Manifests(
        {name: tuple(documents) for name, documents in parts.items()}
        | {"kustomization.yaml": (kustomization,)}
    )


def _check_names(parts: Mapping[str, list[Json]]) -> None:
    seen = set()
    for document in (document for documents in parts.values() for document in documents):
        key = document["kind"], document["metadata"]["name"]
        if key in seen:
            raise ConfigurationError(
                f"two objects would be {key[0]} {key[1]!r}; give each --kafka source and each "
                "--iterate a name of its own"
            )
        seen.add(key)
