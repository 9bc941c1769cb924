"""SQL texts and per-batch functions of the jobs: readable and testable without Flink."""
