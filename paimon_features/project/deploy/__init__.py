"""Kubernetes manifests for a project: what runs it, from its configuration and its definitions.

Nothing here starts anything or needs a cluster: ``render`` returns documents, ``to_yaml`` their
text. The same project and settings result in the same bytes.
"""

from paimon_features.project.deploy.checks import check_project
from paimon_features.project.deploy.manifests import Manifests, render
from paimon_features.project.deploy.project_files import read_project_files
from paimon_features.project.deploy.settings import (
    NAMED_SETTINGS,
    DeploySettings,
    IterationDeployment,
    Topic,
    parse_settings,
)
from paimon_features.project.deploy.yaml_text import to_yaml

__all__ = [
    "NAMED_SETTINGS",
    "DeploySettings",
    "IterationDeployment",
    "Manifests",
    "Topic",
    "check_project",
    "parse_settings",
    "read_project_files",
    "render",
    "to_yaml",
]
