"""A project: its configuration, definitions, lake and stores, behind one object."""

from paimon_features.project.context import Features
from paimon_features.project.project import Project

__all__ = ["Features", "Project"]
