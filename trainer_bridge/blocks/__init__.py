"""Blocks: the data files of a snapshot, pruned, merged, filtered and decoded."""
