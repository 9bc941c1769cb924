"""The engine on Flink, the only package that imports pyflink: SQL, ingest, submission,
iteration."""
