"""The online store, and the materializer that fills it: a view of one snapshot per tile table."""
