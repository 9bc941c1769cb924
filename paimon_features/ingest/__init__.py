"""Ingestion of files, as far as all engines share it: what is read, what is recorded, what counts.

The files and their columns (``inputs``, ``input_columns``), the ledger of what was ingested
(``ledger``), and the order of a run's steps (``files``). An engine reads and judges the rows.
"""
