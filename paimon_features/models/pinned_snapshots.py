"""The snapshots of training sets that model versions were trained on stay readable."""

from __future__ import annotations

from paimon_features.core.errors import SnapshotExpiredError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import consumers, delete_consumer, register_consumer
from paimon_features.lake.metadata.snapshots import snapshot_ids, split_ref
from paimon_features.models.versions_table import load_manifests, model_names

CONSUMER = "models"
"""Name of the consumer that protects them: ``train --again`` and ``retrain`` read them."""


def oldest_pins(lake: Lake) -> dict[str, int]:
    """Training table -> the oldest of its snapshots that a registered version was trained on.

    Raises
    ------
    DamagedFileError
        If a manifest cannot be read: then it is not known what it needs.
    """
    oldest: dict[str, int] = {}
    for name in model_names(lake):
        for manifest in load_manifests(lake, name).values():
            pins = manifest.training
            if pins is not None:
                number = split_ref(pins.snapshot)[0]
                oldest[pins.table] = min(number, oldest.get(pins.table, number))
    return oldest


def hold_pinned(lake: Lake, table: str, oldest: int | None) -> None:
    """Keep the snapshots of a table from ``oldest`` on; None: no version needs one. Idempotent."""
    if oldest is None:
        if CONSUMER in consumers(lake, table):
            delete_consumer(lake, table, CONSUMER)
        return
    ids = [number for number in snapshot_ids(lake, table) if number >= oldest]
    if ids:  # one that is gone already cannot be kept, what follows it can
        try:
            register_consumer(lake, table, CONSUMER, ids[0])
        except SnapshotExpiredError:  # just now
            hold_pinned(lake, table, ids[0] + 1)
