"""The local engine: what Flink computes, by DuckDB in this process, without Java.

It prints its SQL from the same compiled views as the Flink jobs, so that it is a second way to
the same tiles (``backfill --engine local``) and, in ``features``, a third way to the same
features: straight from raw events, with neither tiles nor lake.
"""

from paimon_features.local.features import features
from paimon_features.local.tiling import skipped_sql, tile_rows, tile_sql

__all__ = ["features", "skipped_sql", "tile_rows", "tile_sql"]
