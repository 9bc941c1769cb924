"""The tile job on Flink: submission, backfill and repair of the tiles of a view."""
