"""Events of OpenLineage about commands: what ran, on which versions of which tables.

``CommandRun`` sends them by ``openlineage-python`` (extra ``openlineage``); ``command_datasets``
is what it says, and imports nothing of it.
"""

from paimon_features.integrations.openlineage.command_run import CommandRun
from paimon_features.integrations.openlineage.datasets import LineageDataset, command_datasets

__all__ = ["CommandRun", "LineageDataset", "command_datasets"]
