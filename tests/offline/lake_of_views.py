"""A real lake with the tables of feature views, tiles made by the naive tiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import GenerationError, UnknownNameError
from paimon_features.core.times.partition_days import PARTITION_DAYS, WHOLE_HISTORY, first_days
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView, FeatureRef, FeatureView
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import events_spec, tiles_spec
from paimon_features.offline.store import OfflineStore
from paimon_features.testing.reference.tiler import event_rows, tile_table

BUCKETS = 3


PartitionDays = tuple[int, int]
"""The days of a partition of the tables of events, and of tiles."""


def partition_days(seed: int) -> PartitionDays:
    """Another pair for each of the first seeds; every fifth one is of daily partitions of both."""
    choices = (*PARTITION_DAYS, WHOLE_HISTORY)
    return choices[2 * seed % 5], choices[seed % 5]


class LakeOfViews:
    """Views of one lake; ``commit`` adds events and their tiles, as the jobs would."""

    def __init__(
        self, folder: Path, *views: FeatureView, partition_days: PartitionDays = (1, 1)
    ) -> None:
        self.partition_days = partition_days
        self.lake = Lake.open(folder, "features")
        self.views = {view.name: view for view in views}
        for view in views:
            compiled = view.compiled
            of_events, of_tiles = partition_days
            self.lake.create(events_spec(view.source.table, view.source.schema, of_events))
            partials = [(p.name, p.type, p.merge.paimon) for p in compiled.partials]
            self.lake.create(
                tiles_spec(compiled.table(1), compiled.keys, partials, BUCKETS, of_tiles)
            )
        self.store = OfflineStore(self.lake, self.view, self.generation)

    def view(self, name: str) -> CompiledView:
        if name not in self.views:
            raise UnknownNameError.of("feature view", name, self.views)
        return self.views[name].compiled

    def generation(self, view: CompiledView) -> GenerationRecord:
        if view.name not in self.views:
            raise GenerationError(f"{view.name} is not applied")
        return GenerationRecord(
            view.name, 1, view.table(1), view.fingerprint, BUCKETS, state="active"
        )

    def refs(self, *names: str) -> list[FeatureRef]:
        """References to all features of these views, or of all views."""
        return [
            FeatureRef(name, f.name)
            for name in names or self.views
            for f in self.view(name).features
        ]

    def commit(self, events: pa.Table, *, tiles: bool = True) -> None:
        """One commit of events, and one of their partials to each view of that source."""
        sources = {view.source.table: view.source for view in self.views.values()}
        for table, source in sources.items():
            time = np.array(events.column(source.event_time).to_pylist())
            days = pa.array(first_days(time // DAY_MS, self.partition_days[0]))
            append_arrow(self.lake, table, events.append_column("event_day", days))
        if tiles:
            self.commit_tiles(events)

    def commit_tiles(self, events: pa.Table) -> None:
        for view in self.views.values():
            rows = tile_table(view, event_rows(events), self.partition_days[1])
            append_arrow(self.lake, view.compiled.table(1), rows)
