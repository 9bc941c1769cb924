"""The lake: Paimon tables, their snapshots, and leases on the right to commit.

The only package that imports pypaimon.
"""

from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import (
    Snapshot,
    iter_batches,
    latest_snapshot,
    read_arrow,
    snapshot,
    snapshots,
)
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import EventWriter, append_arrow, append_stream

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
