"""Ingest jobs: files, topics and change logs into the events table of a source."""
