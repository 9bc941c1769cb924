"""The global order of an epoch: which row is at which position, and which rank reads it."""
