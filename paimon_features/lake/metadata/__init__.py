"""Metadata of tables: snapshots, manifests, tags and consumers."""
