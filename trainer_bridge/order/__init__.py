"""The global order of an epoch: which row stands where, and which rank reads it."""
