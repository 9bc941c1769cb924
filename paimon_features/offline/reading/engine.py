"""Protocol of engines that join a feature view's rows in place of the local join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from paimon_features.lake import Lake
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.view_reads import FeatureViewRead


class ViewFeatures(Protocol):
    """The computed features of one view for all rows."""

    def chunk(self, number: int) -> pa.Table:
        """Return the features of a chunk's rows, in their order.

        Columns as of ``ViewJoin.table``.
        """
        ...

    def close(self) -> None:
        """Release spilled data; idempotent."""
        ...


class OfflineEngine(Protocol):
    """An engine that joins rows with tiles and events elsewhere, at the pins of the read."""

    @property
    def name(self) -> str:
        """Recorded in training sets: float sums of different engines may differ in their bits."""
        ...

    def join(
        self,
        lake: Lake,
        read: FeatureViewRead,
        entity_rows: EntityRows,
        spill_folder: str | None,
        tick: Callable[[int], None],
    ) -> ViewFeatures:
        """Compute the features of all rows, with one ``tick`` per chunk, and clean up."""
        ...
