"""Historical features by DuckDB in this process."""
