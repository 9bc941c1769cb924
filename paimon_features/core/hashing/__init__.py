"""The hash of Paimon's buckets."""
