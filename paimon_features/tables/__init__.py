"""The lake: Paimon tables, their snapshots, and leases on the right to commit.

The only package that imports pypaimon.
"""

from paimon_features.tables.catalog import Lake
from paimon_features.tables.reader import (
    Snapshot,
    iter_batches,
    latest_snapshot,
    read_arrow,
    snapshot,
    snapshots,
)
from paimon_features.tables.specs import TableSpec
from paimon_features.tables.writer import EventWriter, append_arrow, append_stream

__all__ = [
    "EventWriter",
    "Lake",
    "Snapshot",
    "TableSpec",
    "append_arrow",
    "append_stream",
    "iter_batches",
    "latest_snapshot",
    "read_arrow",
    "snapshot",
    "snapshots",
]
