"""SQL texts, plans and records of the jobs: readable and testable without Flink."""
