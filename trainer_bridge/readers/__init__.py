"""Snapshot readers: batches of a pinned table snapshot, in the global order."""
