"""Tile jobs, whichever engine runs them: what a job works on, where it may start, what runs now.

``target`` is one generation of a view with its tables, record and checkpoints; ``restart`` decides
where a job may start; ``backfill`` records a backfill; ``jobs`` lists and stops jobs.
"""
