"""A real lake with the tables of feature views, tiles made by the naive tiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.definitions import CompiledView, FeatureRef, FeatureView
from paimon_features.errors import GenerationError, UnknownNameError
from paimon_features.offline.store import OfflineStore
from paimon_features.oracle.tiler import event_rows, tile_table
from paimon_features.tables import Lake, append_arrow
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.specs import events_spec, tiles_spec
from paimon_features.windows import DAY_MS

BUCKETS = 3


class LakeOfViews:
    """Views of one lake; ``commit`` adds events and their tiles, as the jobs would."""

    def __init__(self, folder: Path, *views: FeatureView) -> None:
        self.lake = Lake.open(folder, "features")
        self.views = {view.name: view for view in views}
        for view in views:
            compiled = view.compiled
            self.lake.create(events_spec(view.source.table, view.source.schema))
            partials = [(p.name, p.type, p.merge.paimon) for p in compiled.partials]
            self.lake.create(tiles_spec(compiled.table(1), compiled.keys, partials, BUCKETS))
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
            days = pa.array((time // DAY_MS).astype(np.int32))
            append_arrow(self.lake, table, events.append_column("event_day", days))
        if tiles:
            self.commit_tiles(events)

    def commit_tiles(self, events: pa.Table) -> None:
        for view in self.views.values():
            rows = tile_table(view, event_rows(events))
            append_arrow(self.lake, view.compiled.table(1), rows)
