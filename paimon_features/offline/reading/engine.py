"""What another engine has to do to answer a feature view's rows in place of the local join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.view_reads import FeatureViewRead
from paimon_features.tables import Lake


class ViewResult(Protocol):
    """The answers of one view to all rows, computed."""

    def chunk(self, number: int) -> pa.Table:
        """The answers to the rows of a chunk, in their order; columns as of ``ViewJoin.table``."""
        ...

    def close(self) -> None:
        """Give up what was put aside; harmless when repeated."""
        ...


class OfflineEngine(Protocol):
    """An engine that joins rows with tiles and events elsewhere, at the pins of the read."""

    @property
    def name(self) -> str:
        """As training sets name it: on another engine sums of floats may differ in their bits."""
        ...

    def answer(
        self,
        lake: Lake,
        read: FeatureViewRead,
        asked: EntityRows,
        spill_folder: str | None,
        tick: Callable[[int], None],
    ) -> ViewResult:
        """Answer all rows, with one ``tick`` for the rows of each chunk; then leave no trace."""
        ...
