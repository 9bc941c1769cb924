"""Backups of a live project, and their restoration."""

from paimon_features.project.backup.copying import Backup, back_up, restore
from paimon_features.project.backup.past import set_back

__all__ = ["Backup", "back_up", "restore", "set_back"]
