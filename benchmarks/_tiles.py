"""Rows of a tile table with made-up partials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import FeatureView


def tile_rows(rng: np.random.Generator, view: FeatureView, user: Ints, time_ms: Ints) -> pa.Table:
    """One row per ``user`` (the view's only key) and tile of ``time_ms``, its newest event."""
    tile_ms = view.compiled.tile_ms
    tile = time_ms // tile_ms * tile_ms
    columns: dict[str, Any] = {
        "tile_day": (tile // DAY_MS).astype(np.int32),
        "user": user,
        "tile_start": tile,
    }
    for partial in view.compiled.partials:
        if partial.name == "p_event_time_max":
            columns[partial.name] = time_ms
        elif partial.type.text == "int64":
            columns[partial.name] = rng.integers(1, 10_000, len(user))
        else:
            columns[partial.name] = rng.random(len(user))
    return pa.table(columns)
