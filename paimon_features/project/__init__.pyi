"""The public names of the package; see ``paimon_features.core._lazy``."""

from paimon_features.project.context import Features as Features
from paimon_features.project.project import Project as Project
