"""The jobs on Flink: the only package that imports pyflink."""
