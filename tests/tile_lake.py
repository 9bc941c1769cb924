"""A tile table in a real lake, fed from Python: the input of materializer and serving tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from paimon_features.definitions import CompiledView, FeatureView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import tiles_spec
from paimon_features.lake.writing.table_writer import append_arrow
from paimon_features.online.materialize import Materializer
from paimon_features.online.store.store import OnlineStore
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import tile_table

PROJECT = "shop"


class TileLake:
    """The tile table of one view; ``commit`` plays the tile job.

    Each commit is one snapshot. ``record`` is the generation that a materializer is given;
    tests replace it where a real project would have changed it.
    """

    def __init__(
        self,
        warehouse: Path | str,
        view: FeatureView,
        buckets: int = 2,
        partition_days: int = 1,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.view, self.partition_days = view, partition_days
        self.lake = Lake.open(warehouse, "features", options=options)
        self.record = GenerationRecord(
            view.name, 0, "", view.compiled.fingerprint, buckets, state="active"
        )
        self.identifier = 0
        self.new_generation(buckets)

    @property
    def compiled(self) -> CompiledView:
        """The view as the engines see it."""
        return self.view.compiled

    def new_generation(self, buckets: int) -> None:
        """An empty tile table, active from now on."""
        number = self.record.generation + 1
        table = self.compiled.table(number)
        partials = [(p.name, p.type, p.merge.paimon) for p in self.compiled.partials]
        self.lake.create(
            tiles_spec(table, self.compiled.keys, partials, buckets, self.partition_days)
        )
        self.record = replace(
            self.record,
            generation=number,
            table=table,
            buckets=buckets,
            fingerprint=self.compiled.fingerprint,
            incarnation=0,
        )

    def commit(self, events: Sequence[Event]) -> int:
        """Commit the tiles of these events; returns the newest snapshot's id."""
        return self.commit_tiles(tile_table(self.view, events, self.partition_days))

    def commit_tiles(self, tiles: pa.Table) -> int:
        """Commit rows of the tile table as they are."""
        self.identifier += 1
        return append_arrow(
            self.lake,
            self.record.table,
            tiles,
            commit_user="tile-job",
            commit_identifier=self.identifier,
        )

    def materializer(self, store: OnlineStore, **options: Any) -> Materializer:
        """A materializer of the view, by default without leases, so that none waits."""
        options.setdefault("lease_ttl_ms", None)
        return Materializer(
            self.lake, PROJECT, self.compiled, lambda: self.record, store, **options
        )
