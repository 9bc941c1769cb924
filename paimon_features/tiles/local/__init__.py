"""Tiles by DuckDB in this process; ``tiles.flink`` has the same steps on Flink."""
