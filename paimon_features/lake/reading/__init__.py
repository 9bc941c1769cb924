"""Reading tables at one pinned snapshot: complete, in parts, or the delta of a snapshot."""
