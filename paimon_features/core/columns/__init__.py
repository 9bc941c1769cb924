"""Columns of values in NumPy, and values of other libraries as columns."""
