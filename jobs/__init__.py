"""What runs on Flink: ``logic`` says what a job means, ``flink`` runs it.

Only ``jobs.flink`` imports pyflink.
"""
