"""Imports the definitions of a Feast repository, and lists what has no equivalent."""

from paimon_features.integrations.feast.repository_import.convert import Conversion, convert
from paimon_features.integrations.feast.repository_import.recording import read_repository

__all__ = ["Conversion", "convert", "read_repository"]
