"""The rows that one commit added to an append table, as blocks, and a reader of them."""

from __future__ import annotations

from dataclasses import replace

from paimon_features.core.errors import TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import Snapshot
from paimon_features.lake.reading.deltas import read_delta
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.blocks.open_layout import layout_of
from trainer_bridge.readers.read_plan import ReadPlan
from trainer_bridge.readers.snapshot_reader import SnapshotReader

PASSED_OVER = frozenset({"COMPACT", "ANALYZE"})
"""Kinds of commits that rewrite rows, or describe them, and add none."""


def check_followed(lake: Lake, name: str) -> None:
    """Raise TableError for a table whose commits do not simply add rows."""
    table = lake.table(name)
    if table.primary_keys:
        raise TableError(
            f"table {name!r} has the primary key ({', '.join(table.primary_keys)}): a commit "
            "adds parts of rows to it, and merged rows are known at a snapshot only. "
            "Follow an append table, or read its snapshots one by one with SnapshotReader"
        )
    for option in ("deletion-vectors.enabled", "data-evolution.enabled"):
        if str(table.table_schema.options.get(option, "false")).lower() == "true":
            raise TableError(
                f"table {name!r} has {option}=true, so that commits also change rows that were "
                "there before; follow a plain append table"
            )


def added_rows(
    lake: Lake, name: str, snapshot: Snapshot, block_rows: int, where: str | None = None
) -> Layout | None:
    """Return the blocks of the rows that a commit added and ``where`` keeps; None if there are
    none.

    Raises
    ------
    TableError
        If it replaced rows, which may have been handed out before.
    SnapshotExpiredError
        If it has expired.
    """
    if snapshot.kind in PASSED_OVER:
        return None
    files = read_delta(lake, name, snapshot.id).files
    added = [file for file in files if file.kind == "ADD"]
    if len(added) < len(files) and added:
        raise TableError(
            f"table {name!r}, snapshot {snapshot.id} ({snapshot.kind}) replaces rows of earlier "
            "commits, which may have been read; start again from a later snapshot: start="
        )
    layout = layout_of(lake, name, snapshot.id, added, block_rows, where)
    return layout if layout.num_rows else None


def commit_reader(
    plan: ReadPlan, layout: Layout, position: int, previous: SnapshotReader | None
) -> SnapshotReader:
    """Return a reader of one commit's rows; its epoch is the id of the snapshot.

    It begins at ``position`` and continues the statistics and the tuning of ``previous``.
    """
    plan = replace(plan, ordering=replace(plan.ordering, epoch=layout.snapshot_id))
    snapshot = plan.open(layout=layout)
    return SnapshotReader.of(plan, snapshot, position=position, previous=previous)
