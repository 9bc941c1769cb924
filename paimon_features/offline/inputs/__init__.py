"""Entity rows of any kind, as checked Arrow chunks."""
