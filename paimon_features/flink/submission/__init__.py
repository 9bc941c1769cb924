"""Tile jobs: where one may start, where it runs, and its progress."""
