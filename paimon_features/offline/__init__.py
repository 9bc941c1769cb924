"""The offline store: features at past times, read from pinned snapshots of the lake.

- ``store``, ``training_set``, ``feature_file``: what users call
- ``inputs``: entity rows of any kind, as checked Arrow chunks
- ``joins``: the point-in-time joins themselves, on Arrow tables in memory; no table, no engine
- ``reading``: which snapshots, files and rows of the lake a join needs, also beyond memory
- ``derived_rows``, ``derived_table``: the windows of tumbling and session views
- ``rollup``, ``tile_comparison``: upkeep of the tiles that all of this reads
"""
