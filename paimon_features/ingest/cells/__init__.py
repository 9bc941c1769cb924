"""Cells of files as values, and rows as events or as rejected rows with the reason."""
