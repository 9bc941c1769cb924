"""``ingest --engine local``: files into the events table by Arrow, in this process, without Java.

Rows are split into cells (``csv_cells``, ``json_cells``, ``parquet_cells``), cells are converted to
values (``text_values``, ``stored_values``), and rows are accepted or rejected (``judge``) by the
rules of the Flink job, whose results tests compare with these. ``ingest.local.files`` is the job.
"""
