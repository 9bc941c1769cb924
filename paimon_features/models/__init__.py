"""Model versions: their manifest, their states, and the checks before one is loaded.

Plain data that every host can read: a serving host has neither the lake nor torch.
"""

from paimon_features.models.manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    NETWORK,
    Metric,
    ModelFile,
    ModelInput,
    ModelKey,
    ModelManifest,
    ModelOutput,
    ModelSignature,
    TrainingPins,
    sha256_of,
)
from paimon_features.models.network_checks import MAX_NETWORK_BYTES, check_network
from paimon_features.models.notes import VersionNote
from paimon_features.models.states import SHARES, STATES, ModelState, ModelStates, VersionState

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_NETWORK_BYTES",
    "NETWORK",
    "SHARES",
    "STATES",
    "Metric",
    "ModelFile",
    "ModelInput",
    "ModelKey",
    "ModelManifest",
    "ModelOutput",
    "ModelSignature",
    "ModelState",
    "ModelStates",
    "TrainingPins",
    "VersionNote",
    "VersionState",
    "check_network",
    "sha256_of",
]
