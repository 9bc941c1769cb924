"""The online store, and what fills it: Redis as a view of one snapshot of each tile table."""
