"""The read path: a query, one round trip to the online store, folded windows."""
