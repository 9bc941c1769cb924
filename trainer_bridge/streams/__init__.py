"""Readers that follow a growing table, commit by commit."""
