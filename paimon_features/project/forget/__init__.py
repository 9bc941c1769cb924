"""Deletion of an entity from every table of a project and from its online store."""

from paimon_features.project.forget.deletion import Deletion, ForgetReport
from paimon_features.project.forget.entities import EntitySet

__all__ = ["Deletion", "EntitySet", "ForgetReport"]
