"""Commits events for a tile job of ``spend``, and compares its tiles with the oracle's."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from paimon_features.definitions import FeatureView
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.jobs.target import TileTarget
from tests.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)

Purchases = Callable[[int, int], pa.Table]
"""Generates events from a seed and a number of events."""


class Feed:
    """Commits events and records them."""

    def __init__(self, target: TileTarget, view: FeatureView, make: Purchases) -> None:
        self.target, self.view, self.make = target, view, make
        self.events: list[pa.Table] = []

    def commit(self, count: int = 50) -> None:
        """Commit this many events and some duplicates."""
        self.events.append(self.make(len(self.events), count))
        append_events(self.target.lake, self.view, self.events[-1])

    def assert_exact(self) -> None:
        """Assert that tiles and counts of skipped rows equal the oracle's, each event once."""
        rows = event_rows(pa.concat_tables(self.events))
        tiles, skipped = self.target.tables
        assert wrong_tiles(self.target.lake, self.view, tiles, rows) == []
        assert counted_skips(self.target.lake, skipped) == expected_skips(self.view, rows)
